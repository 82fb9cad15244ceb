//! The one-time link, printed where the console was started: its reader can sign in.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::session::random;

/// Lifetime of a link.
const GOOD: Duration = Duration::from_secs(600);
/// Minimum time between two links.
const PAUSE: Duration = Duration::from_secs(5);

/// Tokens of the valid links. A new link does not revoke the previous ones, so that one user can't lock out another.
pub(crate) struct SignInLinks(Mutex<SignInLinkState>);

struct SignInLinkState {
    good: Vec<SignInToken>,
    last: Instant,
}

struct SignInToken {
    hash: blake3::Hash,
    at: Instant,
}

impl SignInLinks {
    /// Creates the links, with the first token.
    pub(crate) fn new(now: Instant) -> (Self, String) {
        let token = random();
        (Self(Mutex::new(SignInLinkState { good: vec![made(&token, now)], last: now })), token)
    }

    /// Uses up a token; returns `false` if it is unknown, used or expired.
    pub(crate) fn use_up(&self, token: &str, now: Instant) -> bool {
        let hash = blake3::hash(token.as_bytes());
        let mut known = self.lock();
        known.good.retain(|made| is_good(made, now));
        let count = known.good.len();
        known.good.retain(|made| made.hash != hash);
        known.good.len() < count
    }

    /// Creates another token; `None` too soon after the last one.
    pub(crate) fn renew(&self, now: Instant) -> Option<String> {
        let mut known = self.lock();
        if now.saturating_duration_since(known.last) < PAUSE {
            return None;
        }
        // So the list is bounded by the lifetime divided by the minimum time.
        known.good.retain(|made| is_good(made, now));
        known.last = now;
        let token = random();
        known.good.push(made(&token, now));
        Some(token)
    }

    fn lock(&self) -> MutexGuard<'_, SignInLinkState> {
        // A panic can't leave the list inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn made(token: &str, at: Instant) -> SignInToken {
    SignInToken { hash: blake3::hash(token.as_bytes()), at }
}

fn is_good(made: &SignInToken, now: Instant) -> bool {
    now.saturating_duration_since(made.at) < GOOD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_once_and_for_ten_minutes() {
        let start = Instant::now();
        let (link, token) = SignInLinks::new(start);
        assert!(!link.use_up("", start) && !link.use_up(&token[1..], start));
        assert!(link.use_up(&token, start));
        assert!(!link.use_up(&token, start), "used before");
        let (link, token) = SignInLinks::new(start);
        assert!(!link.use_up(&token, start + GOOD), "too old");
        assert_eq!(link.renew(start), None, "a moment after the last");
        let later = start + GOOD;
        let other = link.renew(later).unwrap();
        assert!(!link.use_up(&token, later) && link.use_up(&other, later));
    }

    #[test]
    fn another_link_leaves_the_one_before_good() {
        let start = Instant::now();
        let (link, token) = SignInLinks::new(start);
        let other = link.renew(start + PAUSE).unwrap();
        assert!(link.use_up(&token, start + PAUSE) && link.use_up(&other, start + PAUSE));
    }
}
