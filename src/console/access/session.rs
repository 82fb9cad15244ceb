//! Sessions: a signed cookie that says who somebody is and until when. Nothing is kept of it but what was signed out.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::person::{Person, Role};

/// A session as its cookie says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) person: Person,
    /// What a form must carry: nobody who can't read this session's pages knows it.
    pub(crate) csrf: String,
    /// Names the session; `None` where a proxy says who somebody is, each time anew.
    nonce: Option<String>,
}

/// Makes sessions and knows them again.
pub(crate) struct Sessions {
    key: [u8; 32],
    lifetime: Duration,
    signed_out: Mutex<HashMap<String, DateTime<Utc>>>,
}

/// Signed out and not over: more of them than this are nobody's browser.
const REMEMBERED: usize = 10_000;

impl Sessions {
    /// `secret`: what several consoles share; without it each has its own.
    pub(crate) fn new(secret: Option<&[u8]>, lifetime: Duration) -> Self {
        const CONTEXT: &str = "oncely 2026-11-24 console sessions v1";
        let key = match secret {
            Some(secret) => blake3::derive_key(CONTEXT, secret),
            None => blake3::derive_key(CONTEXT, random().as_bytes()),
        };
        Self { key, lifetime, signed_out: Mutex::default() }
    }

    /// A new session, and the value of its cookie.
    pub(crate) fn open(&self, person: Person, now: DateTime<Utc>) -> (Session, String) {
        let nonce = random();
        let ends = now.timestamp() + i64::try_from(self.lifetime.as_secs()).unwrap_or(0);
        let said = format!("1.{ends}.{}.{nonce}.{}", person.role.as_str(), hex(person.name.as_bytes()));
        let cookie = format!("{said}.{}", self.mac("cookie", &said).to_hex());
        (Session { person, csrf: self.csrf(&nonce), nonce: Some(nonce) }, cookie)
    }

    /// The session of a cookie, where it is one of ours and not over.
    pub(crate) fn read(&self, cookie: &str, now: DateTime<Utc>) -> Option<Session> {
        let (said, mac) = cookie.rsplit_once('.')?;
        // In constant time.
        if blake3::Hash::from_hex(mac).ok()? != self.mac("cookie", said) {
            return None;
        }
        let mut parts = said.split('.');
        let (version, ends) = (parts.next()?, parts.next()?.parse::<i64>().ok()?);
        let (role, nonce) = (Role::parse(parts.next()?)?, parts.next()?.to_owned());
        let name = String::from_utf8(unhex(parts.next()?)?).ok()?;
        if version != "1" || parts.next().is_some() || now.timestamp() >= ends {
            return None;
        }
        if self.lock().contains_key(&nonce) {
            return None;
        }
        Some(Session { person: Person::new(&name, role)?, csrf: self.csrf(&nonce), nonce: Some(nonce) })
    }

    /// Of somebody whom a proxy vouches for.
    pub(crate) fn vouched(&self, person: Person) -> Session {
        let csrf = self.csrf(&format!("proxy {} {}", person.role.as_str(), person.name));
        Session { person, csrf, nonce: None }
    }

    /// The session's cookie is not known any more, whoever kept it.
    pub(crate) fn close(&self, session: &Session, now: DateTime<Utc>) {
        let Some(nonce) = &session.nonce else { return };
        let mut signed_out = self.lock();
        signed_out.retain(|_, ends| *ends > now);
        if signed_out.len() < REMEMBERED
            && let Ok(lifetime) = chrono::Duration::from_std(self.lifetime)
        {
            signed_out.insert(nonce.clone(), now + lifetime);
        }
    }

    /// Does a form carry what the session's pages say?
    pub(crate) fn is_from(session: &Session, said: &str) -> bool {
        // Hashed first, so that the comparison takes the same time wherever they differ.
        blake3::hash(session.csrf.as_bytes()) == blake3::hash(said.as_bytes())
    }

    pub(crate) fn lifetime(&self) -> Duration {
        self.lifetime
    }

    fn csrf(&self, of: &str) -> String {
        self.mac("csrf", of).to_hex()[..32].to_owned()
    }

    fn mac(&self, what: &str, text: &str) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(what.as_bytes()).update(b"\0").update(text.as_bytes());
        hasher.finalize()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, DateTime<Utc>>> {
        // Every change leaves the map whole.
        self.signed_out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// 244 random bits.
pub(crate) fn random() -> String {
    format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ana() -> Person {
        Person::new("ana", Role::Viewer).unwrap()
    }

    const HOUR: Duration = Duration::from_secs(3_600);

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    #[test]
    fn a_cookie_holds_until_its_end_and_not_a_letter_of_it_can_be_changed() {
        let sessions = Sessions::new(None, HOUR);
        let (session, cookie) = sessions.open(ana(), at(0));
        assert_eq!(sessions.read(&cookie, at(3_599)), Some(session.clone()));
        assert_eq!(sessions.read(&cookie, at(3_600)), None);
        assert_eq!(sessions.read(&cookie.replace("viewer", "operator"), at(0)), None);
        for index in 0..cookie.len() {
            let mut other = cookie.clone().into_bytes();
            other[index] = if other[index] == b'1' { b'2' } else { b'1' };
            let other = String::from_utf8(other).unwrap();
            assert!(other == cookie || sessions.read(&other, at(0)).is_none(), "{other}");
        }
        assert_eq!(Sessions::new(None, HOUR).read(&cookie, at(0)), None, "another process's key");
        for junk in ["", ".", "1", "1.2.viewer.3.4.5", "......"] {
            assert_eq!(sessions.read(junk, at(0)), None, "{junk}");
        }
        let shared = || Sessions::new(Some(b"0123456789abcdef"), HOUR);
        let (_, cookie) = shared().open(ana(), at(0));
        assert!(shared().read(&cookie, at(0)).is_some(), "a key that several consoles share");
    }

    #[test]
    fn a_session_that_was_signed_out_is_over_for_whoever_kept_its_cookie() {
        let sessions = Sessions::new(None, HOUR);
        let (session, cookie) = sessions.open(ana(), at(0));
        let (_, other) = sessions.open(ana(), at(0));
        sessions.close(&session, at(1));
        assert_eq!(sessions.read(&cookie, at(2)), None);
        assert!(sessions.read(&other, at(2)).is_some());
    }

    #[test]
    fn each_session_has_a_token_of_its_own_for_forms() {
        let sessions = Sessions::new(None, HOUR);
        let ((one, _), (other, _)) = (sessions.open(ana(), at(0)), sessions.open(ana(), at(0)));
        assert!(Sessions::is_from(&one, &one.csrf));
        assert!(!Sessions::is_from(&one, &other.csrf) && !Sessions::is_from(&one, ""));
        let vouched = |role| sessions.vouched(Person::new("bo", role).unwrap()).csrf;
        assert_ne!(vouched(Role::Viewer), vouched(Role::Operator));
    }
}
