//! The one-time link, printed where the console was started: its reader can sign in.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::session::random_token;

/// Lifetime of a link.
const LINK_LIFETIME: Duration = Duration::from_secs(600);
/// Minimum time between two links.
const MIN_LINK_INTERVAL: Duration = Duration::from_secs(5);

/// Tokens of the valid links. A new link does not revoke the previous ones, so that one user can't lock out another.
pub(crate) struct SignInLinks(Mutex<SignInLinkState>);

struct SignInLinkState {
    tokens: Vec<SignInToken>,
    last_created_at: Instant,
}

struct SignInToken {
    hash: blake3::Hash,
    created_at: Instant,
}

impl SignInLinks {
    /// Creates the links, with the first token.
    pub(crate) fn new(now: Instant) -> (Self, String) {
        let token = random_token();
        (
            Self(Mutex::new(SignInLinkState { tokens: vec![hash_token(&token, now)], last_created_at: now })),
            token,
        )
    }

    /// Uses up a token; returns `false` if it is unknown, used or expired.
    pub(crate) fn use_up(&self, token: &str, now: Instant) -> bool {
        let hash = blake3::hash(token.as_bytes());
        let mut state = self.lock();
        state.tokens.retain(|entry| is_unexpired(entry, now));
        let count = state.tokens.len();
        state.tokens.retain(|entry| entry.hash != hash);
        state.tokens.len() < count
    }

    /// Creates another token; `None` within five seconds of the last one.
    pub(crate) fn renew(&self, now: Instant) -> Option<String> {
        let mut state = self.lock();
        if now.saturating_duration_since(state.last_created_at) < MIN_LINK_INTERVAL {
            return None;
        }
        // So the list is bounded by the lifetime divided by the minimum time.
        state.tokens.retain(|entry| is_unexpired(entry, now));
        state.last_created_at = now;
        let token = random_token();
        state.tokens.push(hash_token(&token, now));
        Some(token)
    }

    fn lock(&self) -> MutexGuard<'_, SignInLinkState> {
        // A panic can't leave the list inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the stored form of a token: its hash, and the time of its creation.
fn hash_token(token: &str, created_at: Instant) -> SignInToken {
    SignInToken { hash: blake3::hash(token.as_bytes()), created_at }
}

fn is_unexpired(entry: &SignInToken, now: Instant) -> bool {
    now.saturating_duration_since(entry.created_at) < LINK_LIFETIME
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
        assert!(!link.use_up(&token, start + LINK_LIFETIME), "too old");
        assert_eq!(link.renew(start), None, "a moment after the last");
        let later = start + LINK_LIFETIME;
        let other = link.renew(later).unwrap();
        assert!(!link.use_up(&token, later) && link.use_up(&other, later));
    }

    #[test]
    fn another_link_leaves_the_one_before_good() {
        let start = Instant::now();
        let (link, token) = SignInLinks::new(start);
        let other = link.renew(start + MIN_LINK_INTERVAL).unwrap();
        assert!(
            link.use_up(&token, start + MIN_LINK_INTERVAL) && link.use_up(&other, start + MIN_LINK_INTERVAL)
        );
    }
}
