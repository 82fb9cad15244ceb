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
    expires_at: i64,
    /// Identifies the session.
    nonce: String,
    /// Derived from the credential of the sign-in.
    credential_hash: String,
}

/// Creates and verifies sessions.
pub(crate) struct LoginSessions {
    key: [u8; 32],
    lifetime: Duration,
    revocations: Mutex<RevokedSessions>,
}

#[derive(Default)]
struct RevokedSessions {
    /// Sessions, and their regular end.
    nonces: HashMap<String, i64>,
    /// Sessions that end until this time are signed out.
    all_until: i64,
}

/// Maximum number of signed-out sessions that have not ended: beyond it, all sessions are signed out.
const MAX_REVOKED: usize = 10_000;

impl LoginSessions {
    /// Derives the signing key. `secret`: shared by several consoles; without it each has its own. `binding`: values that such consoles
    /// have in common; cookies of other consoles are invalid.
    pub(crate) fn new(secret: Option<&[u8]>, binding: &[&str], lifetime: Duration) -> Self {
        const CONTEXT: &str = "oncely 2026-11-24 console sessions v2";
        let mut hasher = match secret {
            Some(secret) => blake3::Hasher::new_keyed(&blake3::derive_key(CONTEXT, secret)),
            None => blake3::Hasher::new_keyed(&blake3::derive_key(CONTEXT, random_token().as_bytes())),
        };
        for part in binding {
            // With its length, so that two different lists don't hash to the same text.
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        Self { key: *hasher.finalize().as_bytes(), lifetime, revocations: Mutex::default() }
    }

    /// Opens a session with this credential; returns its signed cookie.
    pub(crate) fn open(&self, credential: &[u8], now: DateTime<Utc>) -> String {
        let expires_at = now.timestamp().saturating_add(self.lifetime_seconds());
        let payload = format!("2.{expires_at}.{}.{}", random_token(), self.hash_credential(credential));
        format!("{payload}.{}", self.mac("cookie", payload.as_bytes()).to_hex())
    }

    /// Verifies the signature and the end of a cookie, and returns its content; `None` if it is invalid, expired or signed out.
    pub(crate) fn verify_cookie(&self, cookie: &str, now: DateTime<Utc>) -> Option<SessionCookie> {
        let (payload, mac) = cookie.rsplit_once('.')?;
        // In constant time.
        if blake3::Hash::from_hex(mac).ok()? != self.mac("cookie", payload.as_bytes()) {
            return None;
        }
        let parts: Vec<&str> = payload.split('.').collect();
        let ["2", expires_at, nonce, credential_hash] = parts[..] else { return None };
        let cookie = SessionCookie {
            expires_at: expires_at.parse().ok()?,
            nonce: nonce.to_owned(),
            credential_hash: credential_hash.to_owned(),
        };
        self.is_active(&cookie, now).then_some(cookie)
    }

    /// Creates the session of a verified cookie and its user.
    pub(crate) fn new_session(&self, cookie: SessionCookie, user: User) -> LoginSession {
        LoginSession { user, csrf: self.csrf_token(&cookie.nonce), cookie: Some(cookie) }
    }

    /// Returns whether a cookie's session was opened with this credential.
    pub(crate) fn is_opened_with(&self, cookie: &SessionCookie, credential: &[u8]) -> bool {
        blake3::hash(self.hash_credential(credential).as_bytes())
            == blake3::hash(cookie.credential_hash.as_bytes())
    }

    /// Returns whether the session has neither expired nor been signed out.
    fn is_active(&self, cookie: &SessionCookie, now: DateTime<Utc>) -> bool {
        let revocations = self.lock();
        now.timestamp() < cookie.expires_at
            && cookie.expires_at > revocations.all_until
            && !revocations.nonces.contains_key(&cookie.nonce)
    }

    /// Returns whether a session is valid. One without a cookie is valid for its request.
    pub(crate) fn is_valid(&self, session: &LoginSession, now: DateTime<Utc>) -> bool {
        session.cookie.as_ref().is_none_or(|cookie| self.is_active(cookie, now))
    }

    /// Creates the session of a user whom a proxy has authenticated.
    pub(crate) fn new_proxy_session(&self, user: User) -> LoginSession {
        let csrf = self.csrf_token(&format!("proxy {} {}", user.role.as_str(), user.name));
        LoginSession { user, csrf, cookie: None }
    }

    /// Signs a session out: all copies of its cookie become invalid.
    pub(crate) fn close(&self, session: &LoginSession, now: DateTime<Utc>) {
        let Some(cookie) = &session.cookie else { return };
        let mut revocations = self.lock();
        revocations.nonces.retain(|_, expires_at| *expires_at > now.timestamp());
        if revocations.nonces.len() >= MAX_REVOKED {
            revocations.nonces.clear();
            revocations.all_until = now.timestamp().saturating_add(self.lifetime_seconds());
        }
        revocations.nonces.insert(cookie.nonce.clone(), cookie.expires_at);
    }

    /// Returns whether a form's token is the token of the session.
    pub(crate) fn is_csrf_token(session: &LoginSession, token: &str) -> bool {
        // Hashed first, so that the comparison takes constant time.
        blake3::hash(session.csrf.as_bytes()) == blake3::hash(token.as_bytes())
    }

    pub(crate) fn lifetime(&self) -> Duration {
        self.lifetime
    }

    fn lifetime_seconds(&self) -> i64 {
        i64::try_from(self.lifetime.as_secs()).unwrap_or(0)
    }

    /// Returns the form token of a session.
    fn csrf_token(&self, subject: &str) -> String {
        self.mac("csrf", subject.as_bytes()).to_hex()[..32].to_owned()
    }

    /// Returns the keyed hash of a credential, which a cookie contains.
    fn hash_credential(&self, credential: &[u8]) -> String {
        self.mac("pass", credential).to_hex()[..32].to_owned()
    }

    /// Returns the keyed hash of a text for one purpose.
    fn mac(&self, purpose: &str, text: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(purpose.as_bytes()).update(b"\0").update(text);
        hasher.finalize()
    }

    fn lock(&self) -> MutexGuard<'_, RevokedSessions> {
        // A panic elsewhere can't leave it inconsistent.
        self.revocations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a text of 244 random bits.
pub(crate) fn random_token() -> String {
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
        let content = sessions.verify_cookie(&cookie, at(3_599)).unwrap();
        assert!(
            sessions.is_opened_with(&content, b"ana's token")
                && !sessions.is_opened_with(&content, b"another")
        );
        assert_eq!(sessions.verify_cookie(&cookie, at(3_600)), None);
        for index in 0..cookie.len() {
            let mut other = cookie.clone().into_bytes();
            other[index] = if other[index] == b'1' { b'2' } else { b'1' };
            let other = String::from_utf8(other).unwrap();
            assert!(other == cookie || sessions.verify_cookie(&other, at(0)).is_none(), "{other}");
        }
        assert_eq!(own().verify_cookie(&cookie, at(0)), None, "another process's key");
        for junk in ["", ".", "2", "2.2.3.4.5", "......"] {
            assert_eq!(sessions.verify_cookie(junk, at(0)), None, "{junk}");
        }
    }

    #[test]
    fn consoles_that_share_a_key_know_each_others_sessions_where_they_show_the_same() {
        let shared = |binding: &[&str]| LoginSessions::new(Some(b"0123456789abcdef"), binding, HOUR);
        let cookie = shared(&CELL).open(b"x", at(0));
        let content = shared(&CELL).verify_cookie(&cookie, at(0)).unwrap();
        assert!(shared(&CELL).is_opened_with(&content, b"x"));
        for other in [
            &["staging", CELL[1]][..],
            &[CELL[0], "https://staging.example.com/"],
            &["mainh", "ttps://ops.example.com/"],
        ] {
            assert_eq!(shared(other).verify_cookie(&cookie, at(0)), None, "{other:?}");
        }
    }

    #[test]
    fn a_session_that_was_signed_out_is_over_for_whoever_kept_its_cookie() {
        let sessions = own();
        let open = || {
            let cookie = sessions.open(b"x", at(0));
            let session = sessions.new_session(sessions.verify_cookie(&cookie, at(0)).unwrap(), ana());
            (session, cookie)
        };
        let ((session, cookie), (other, kept)) = (open(), open());
        sessions.close(&session, at(1));
        assert_eq!(sessions.verify_cookie(&cookie, at(2)), None);
        assert!(!sessions.is_valid(&session, at(2)) && sessions.is_valid(&other, at(2)));
        assert!(sessions.verify_cookie(&kept, at(2)).is_some());
    }

    #[test]
    fn no_sign_out_is_forgotten_however_many_there_are() {
        let sessions = own();
        let first = sessions.open(b"x", at(0));
        let session =
            |cookie: &str| sessions.new_session(sessions.verify_cookie(cookie, at(0)).unwrap(), ana());
        sessions.close(&session(&first), at(0));
        let mut last = String::new();
        for _ in 0..=MAX_REVOKED {
            last = sessions.open(b"x", at(0));
            if sessions.verify_cookie(&last, at(0)).is_none() {
                break;
            }
            sessions.close(&session(&last), at(0));
            assert_eq!(sessions.verify_cookie(&last, at(0)), None);
        }
        assert_eq!(
            (sessions.verify_cookie(&first, at(0)), sessions.verify_cookie(&last, at(0))),
            (None, None)
        );
        assert!(
            sessions.verify_cookie(&sessions.open(b"x", at(1)), at(1)).is_some(),
            "whoever signs in anew"
        );
    }

    #[test]
    fn each_session_has_a_token_of_its_own_for_forms() {
        let sessions = own();
        let open = || {
            let cookie = sessions.verify_cookie(&sessions.open(b"x", at(0)), at(0)).unwrap();
            sessions.new_session(cookie, ana())
        };
        let (one, other) = (open(), open());
        assert!(LoginSessions::is_csrf_token(&one, &one.csrf));
        assert!(!LoginSessions::is_csrf_token(&one, &other.csrf) && !LoginSessions::is_csrf_token(&one, ""));
        let vouched = |role| sessions.new_proxy_session(User::new("bo", role).unwrap()).csrf;
        assert_ne!(vouched(ConsoleRole::Viewer), vouched(ConsoleRole::Operator));
    }
}
