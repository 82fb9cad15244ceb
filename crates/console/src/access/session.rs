//! Sessions: a signed cookie with the credential of the sign-in and the session's end. The user and the role are looked up at each request.
//! Only signed-out sessions are stored.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::user::User;

/// A session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoginSession {
    pub(crate) user: User,
    /// Token of the session's forms: only a reader of its pages knows it.
    pub(crate) csrf: String,
    /// The session's cookie; `None` if a proxy names the user with each request.
    pub(super) cookie: Option<SessionCookie>,
}

/// Content of a cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionCookie {
    ends: i64,
    /// Identifies the session.
    nonce: String,
    /// Derived from the credential of the sign-in.
    pass: String,
}

/// Creates and verifies sessions.
pub(crate) struct LoginSessions {
    key: [u8; 32],
    lifetime: Duration,
    signed_out: Mutex<RevokedSessions>,
}

#[derive(Default)]
struct RevokedSessions {
    /// Sessions, and their regular end.
    nonces: HashMap<String, i64>,
    /// Sessions that end until this time are signed out.
    all_until: i64,
}

/// Maximum number of signed-out sessions that have not ended: beyond it, all sessions are signed out.
const REMEMBERED: usize = 10_000;

impl LoginSessions {
    /// Derives the signing key. `secret`: shared by several consoles; without it each has its own. `bound_to`: values that such consoles have
    /// in common; cookies of other consoles are invalid.
    pub(crate) fn new(secret: Option<&[u8]>, bound_to: &[&str], lifetime: Duration) -> Self {
        const CONTEXT: &str = "oncely 2026-11-24 console sessions v2";
        let mut hasher = match secret {
            Some(secret) => blake3::Hasher::new_keyed(&blake3::derive_key(CONTEXT, secret)),
            None => blake3::Hasher::new_keyed(&blake3::derive_key(CONTEXT, random().as_bytes())),
        };
        for part in bound_to {
            // With its length, so that two different lists don't hash to the same text.
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        Self { key: *hasher.finalize().as_bytes(), lifetime, signed_out: Mutex::default() }
    }

    /// Returns the cookie of a new session with this credential.
    pub(crate) fn open(&self, by: &[u8], now: DateTime<Utc>) -> String {
        let ends = now.timestamp().saturating_add(self.seconds());
        let said = format!("2.{ends}.{}.{}", random(), self.pass(by));
        format!("{said}.{}", self.mac("cookie", said.as_bytes()).to_hex())
    }

    /// Returns a cookie's content, if it is ours and has not expired.
    pub(crate) fn read(&self, cookie: &str, now: DateTime<Utc>) -> Option<SessionCookie> {
        let (said, mac) = cookie.rsplit_once('.')?;
        // In constant time.
        if blake3::Hash::from_hex(mac).ok()? != self.mac("cookie", said.as_bytes()) {
            return None;
        }
        let parts: Vec<&str> = said.split('.').collect();
        let ["2", ends, nonce, pass] = parts[..] else { return None };
        let cookie =
            SessionCookie { ends: ends.parse().ok()?, nonce: nonce.to_owned(), pass: pass.to_owned() };
        self.holds(&cookie, now).then_some(cookie)
    }

    /// Returns the session of a cookie and its user.
    pub(crate) fn session(&self, cookie: SessionCookie, user: User) -> LoginSession {
        LoginSession { user, csrf: self.csrf(&cookie.nonce), cookie: Some(cookie) }
    }

    /// Returns whether the session was opened with this credential.
    pub(crate) fn is_by(&self, cookie: &SessionCookie, by: &[u8]) -> bool {
        blake3::hash(self.pass(by).as_bytes()) == blake3::hash(cookie.pass.as_bytes())
    }

    /// Returns whether the session has neither expired nor been signed out.
    fn holds(&self, cookie: &SessionCookie, now: DateTime<Utc>) -> bool {
        let signed_out = self.lock();
        now.timestamp() < cookie.ends
            && cookie.ends > signed_out.all_until
            && !signed_out.nonces.contains_key(&cookie.nonce)
    }

    /// Returns whether a session is valid. One without a cookie is valid for its request.
    pub(crate) fn is_valid(&self, session: &LoginSession, now: DateTime<Utc>) -> bool {
        session.cookie.as_ref().is_none_or(|cookie| self.holds(cookie, now))
    }

    /// Returns the session of a user whom a proxy has authenticated.
    pub(crate) fn vouched(&self, user: User) -> LoginSession {
        let csrf = self.csrf(&format!("proxy {} {}", user.role.as_str(), user.name));
        LoginSession { user, csrf, cookie: None }
    }

    /// Signs a session out: all copies of its cookie become invalid.
    pub(crate) fn close(&self, session: &LoginSession, now: DateTime<Utc>) {
        let Some(cookie) = &session.cookie else { return };
        let mut signed_out = self.lock();
        signed_out.nonces.retain(|_, ends| *ends > now.timestamp());
        if signed_out.nonces.len() >= REMEMBERED {
            signed_out.nonces.clear();
            signed_out.all_until = now.timestamp().saturating_add(self.seconds());
        }
        signed_out.nonces.insert(cookie.nonce.clone(), cookie.ends);
    }

    /// Returns whether a form has the token of the session.
    pub(crate) fn is_from(session: &LoginSession, said: &str) -> bool {
        // Hashed first, so that the comparison takes constant time.
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

    fn lock(&self) -> MutexGuard<'_, RevokedSessions> {
        // A panic elsewhere can't leave it inconsistent.
        self.signed_out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns 244 random bits.
pub(crate) fn random() -> String {
    format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::super::user::ConsoleRole;

    fn ana() -> User {
        User::new("ana", ConsoleRole::Viewer).unwrap()
    }

    const HOUR: Duration = Duration::from_secs(3_600);
    const CELL: [&str; 2] = ["main", "https://ops.example.com/"];

    fn own() -> LoginSessions {
        LoginSessions::new(None, &CELL, HOUR)
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
        let shared = |bound_to: &[&str]| LoginSessions::new(Some(b"0123456789abcdef"), bound_to, HOUR);
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
        assert!(!sessions.is_valid(&session, at(2)) && sessions.is_valid(&other, at(2)));
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
        assert!(LoginSessions::is_from(&one, &one.csrf));
        assert!(!LoginSessions::is_from(&one, &other.csrf) && !LoginSessions::is_from(&one, ""));
        let vouched = |role| sessions.vouched(User::new("bo", role).unwrap()).csrf;
        assert_ne!(vouched(ConsoleRole::Viewer), vouched(ConsoleRole::Operator));
    }
}
