//! Sessions: a signed cookie that says by what somebody came in and until when. Who that is and what they may do is looked up each time.
//! Nothing is kept of it but what was signed out.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::person::Person;

/// A session as its cookie says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) person: Person,
    /// What a form must carry: nobody who can't read this session's pages knows it.
    pub(crate) csrf: String,
    /// As its cookie says it; `None` where a proxy says who somebody is, each time anew.
    cookie: Option<Cookie>,
}

/// What a cookie says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cookie {
    ends: i64,
    /// Names the session.
    nonce: String,
    /// Made of that by which somebody came in.
    pass: String,
}

/// Makes sessions and knows them again.
pub(crate) struct Sessions {
    key: [u8; 32],
    lifetime: Duration,
    signed_out: Mutex<SignedOut>,
}

#[derive(Default)]
struct SignedOut {
    /// Sessions, and when they would have ended.
    nonces: HashMap<String, i64>,
    /// Whatever ends until then is over.
    all_until: i64,
}

/// Signed out and not over: when there are more of them, everybody signs in anew.
const REMEMBERED: usize = 10_000;

impl Sessions {
    /// `secret`: what several consoles share; without it each has its own. `bound_to`: what such consoles have in common; another's cookies
    /// are not known here.
    pub(crate) fn new(secret: Option<&[u8]>, bound_to: &[&str], lifetime: Duration) -> Self {
        const CONTEXT: &str = "oncely 2026-11-24 console sessions v2";
        let mut hasher = match secret {
            Some(secret) => blake3::Hasher::new_keyed(&blake3::derive_key(CONTEXT, secret)),
            None => blake3::Hasher::new_keyed(&blake3::derive_key(CONTEXT, random().as_bytes())),
        };
        for part in bound_to {
            // With its length, so that no two lists are one text.
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        Self { key: *hasher.finalize().as_bytes(), lifetime, signed_out: Mutex::default() }
    }

    /// The cookie of a new session, for whoever came in by this.
    pub(crate) fn open(&self, by: &[u8], now: DateTime<Utc>) -> String {
        let ends = now.timestamp().saturating_add(self.seconds());
        let said = format!("2.{ends}.{}.{}", random(), self.pass(by));
        format!("{said}.{}", self.mac("cookie", said.as_bytes()).to_hex())
    }

    /// What a cookie says, where it is one of ours and not over.
    pub(crate) fn read(&self, cookie: &str, now: DateTime<Utc>) -> Option<Cookie> {
        let (said, mac) = cookie.rsplit_once('.')?;
        // In constant time.
        if blake3::Hash::from_hex(mac).ok()? != self.mac("cookie", said.as_bytes()) {
            return None;
        }
        let parts: Vec<&str> = said.split('.').collect();
        let ["2", ends, nonce, pass] = parts[..] else { return None };
        let cookie = Cookie { ends: ends.parse().ok()?, nonce: nonce.to_owned(), pass: pass.to_owned() };
        self.holds(&cookie, now).then_some(cookie)
    }

    /// The session of a cookie, whose person is this.
    pub(crate) fn session(&self, cookie: Cookie, person: Person) -> Session {
        Session { person, csrf: self.csrf(&cookie.nonce), cookie: Some(cookie) }
    }

    /// Is that by which somebody came in this one?
    pub(crate) fn is_by(&self, cookie: &Cookie, by: &[u8]) -> bool {
        blake3::hash(self.pass(by).as_bytes()) == blake3::hash(cookie.pass.as_bytes())
    }

    /// Is it neither over nor signed out?
    fn holds(&self, cookie: &Cookie, now: DateTime<Utc>) -> bool {
        let signed_out = self.lock();
        now.timestamp() < cookie.ends
            && cookie.ends > signed_out.all_until
            && !signed_out.nonces.contains_key(&cookie.nonce)
    }

    /// The cookie of a session that is still one; `None` inside: it has none.
    pub(crate) fn still(&self, session: &Session, now: DateTime<Utc>) -> Option<Option<Cookie>> {
        match &session.cookie {
            None => Some(None),
            Some(cookie) => self.holds(cookie, now).then(|| Some(cookie.clone())),
        }
    }

    /// Of somebody whom a proxy vouches for.
    pub(crate) fn vouched(&self, person: Person) -> Session {
        let csrf = self.csrf(&format!("proxy {} {}", person.role.as_str(), person.name));
        Session { person, csrf, cookie: None }
    }

    /// The session's cookie is not known any more, whoever kept it.
    pub(crate) fn close(&self, session: &Session, now: DateTime<Utc>) {
        let Some(cookie) = &session.cookie else { return };
        let mut signed_out = self.lock();
        signed_out.nonces.retain(|_, ends| *ends > now.timestamp());
        if signed_out.nonces.len() >= REMEMBERED {
            signed_out.nonces.clear();
            signed_out.all_until = now.timestamp().saturating_add(self.seconds());
        }
        signed_out.nonces.insert(cookie.nonce.clone(), cookie.ends);
    }

    /// Does a form carry what the session's pages say?
    pub(crate) fn is_from(session: &Session, said: &str) -> bool {
        // Hashed first, so that the comparison takes the same time wherever they differ.
        blake3::hash(session.csrf.as_bytes()) == blake3::hash(said.as_bytes())
    }

    pub(crate) fn lifetime(&self) -> Duration {
        self.lifetime
    }

    fn seconds(&self) -> i64 {
        i64::try_from(self.lifetime.as_secs()).unwrap_or(0)
    }

    fn csrf(&self, of: &str) -> String {
        self.mac("csrf", of.as_bytes()).to_hex()[..32].to_owned()
    }

    fn pass(&self, by: &[u8]) -> String {
        self.mac("pass", by).to_hex()[..32].to_owned()
    }

    fn mac(&self, what: &str, text: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(what.as_bytes()).update(b"\0").update(text);
        hasher.finalize()
    }

    fn lock(&self) -> MutexGuard<'_, SignedOut> {
        // A panic elsewhere leaves it whole.
        self.signed_out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// 244 random bits.
pub(crate) fn random() -> String {
    format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::super::person::Role;

    fn ana() -> Person {
        Person::new("ana", Role::Viewer).unwrap()
    }

    const HOUR: Duration = Duration::from_secs(3_600);
    const CELL: [&str; 2] = ["main", "https://ops.example.com/"];

    fn own() -> Sessions {
        Sessions::new(None, &CELL, HOUR)
    }

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    #[test]
    fn a_cookie_holds_until_its_end_and_not_a_letter_of_it_can_be_changed() {
        let sessions = own();
        let cookie = sessions.open(b"ana's token", at(0));
        let said = sessions.read(&cookie, at(3_599)).unwrap();
        assert!(sessions.is_by(&said, b"ana's token") && !sessions.is_by(&said, b"another"));
        assert_eq!(sessions.read(&cookie, at(3_600)), None);
        for index in 0..cookie.len() {
            let mut other = cookie.clone().into_bytes();
            other[index] = if other[index] == b'1' { b'2' } else { b'1' };
            let other = String::from_utf8(other).unwrap();
            assert!(other == cookie || sessions.read(&other, at(0)).is_none(), "{other}");
        }
        assert_eq!(own().read(&cookie, at(0)), None, "another process's key");
        for junk in ["", ".", "2", "2.2.3.4.5", "......"] {
            assert_eq!(sessions.read(junk, at(0)), None, "{junk}");
        }
    }

    #[test]
    fn consoles_that_share_a_key_know_each_others_sessions_where_they_show_the_same() {
        let shared = |bound_to: &[&str]| Sessions::new(Some(b"0123456789abcdef"), bound_to, HOUR);
        let cookie = shared(&CELL).open(b"x", at(0));
        let said = shared(&CELL).read(&cookie, at(0)).unwrap();
        assert!(shared(&CELL).is_by(&said, b"x"));
        for other in [
            &["staging", CELL[1]][..],
            &[CELL[0], "https://staging.example.com/"],
            &["mainh", "ttps://ops.example.com/"],
        ] {
            assert_eq!(shared(other).read(&cookie, at(0)), None, "{other:?}");
        }
    }

    #[test]
    fn a_session_that_was_signed_out_is_over_for_whoever_kept_its_cookie() {
        let sessions = own();
        let open = || {
            let cookie = sessions.open(b"x", at(0));
            let session = sessions.session(sessions.read(&cookie, at(0)).unwrap(), ana());
            (session, cookie)
        };
        let ((session, cookie), (other, kept)) = (open(), open());
        sessions.close(&session, at(1));
        assert_eq!(sessions.read(&cookie, at(2)), None);
        assert!(sessions.still(&session, at(2)).is_none() && sessions.still(&other, at(2)).is_some());
        assert!(sessions.read(&kept, at(2)).is_some());
    }

    #[test]
    fn no_sign_out_is_forgotten_however_many_there_are() {
        let sessions = own();
        let first = sessions.open(b"x", at(0));
        let session = |cookie: &str| sessions.session(sessions.read(cookie, at(0)).unwrap(), ana());
        sessions.close(&session(&first), at(0));
        let mut last = String::new();
        for _ in 0..=REMEMBERED {
            last = sessions.open(b"x", at(0));
            if sessions.read(&last, at(0)).is_none() {
                break;
            }
            sessions.close(&session(&last), at(0));
            assert_eq!(sessions.read(&last, at(0)), None);
        }
        assert_eq!((sessions.read(&first, at(0)), sessions.read(&last, at(0))), (None, None));
        assert!(sessions.read(&sessions.open(b"x", at(1)), at(1)).is_some(), "whoever signs in anew");
    }

    #[test]
    fn each_session_has_a_token_of_its_own_for_forms() {
        let sessions = own();
        let open = || {
            let cookie = sessions.read(&sessions.open(b"x", at(0)), at(0)).unwrap();
            sessions.session(cookie, ana())
        };
        let (one, other) = (open(), open());
        assert!(Sessions::is_from(&one, &one.csrf));
        assert!(!Sessions::is_from(&one, &other.csrf) && !Sessions::is_from(&one, ""));
        let vouched = |role| sessions.vouched(Person::new("bo", role).unwrap()).csrf;
        assert_ne!(vouched(Role::Viewer), vouched(Role::Operator));
    }
}
