//! The one-time link that is printed where the console was started: whoever sees that terminal may come in.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::session::random;

/// How long a link is good for.
const GOOD: Duration = Duration::from_secs(600);
/// A new one is printed no sooner than this after the last.
const PAUSE: Duration = Duration::from_secs(5);

/// The token of the link that is good now.
pub(crate) struct Link(Mutex<Current>);

struct Current {
    /// `None` once it was used.
    hash: Option<blake3::Hash>,
    made_at: Instant,
}

impl Link {
    /// With its first token.
    pub(crate) fn new(now: Instant) -> (Self, String) {
        let token = random();
        let current = Current { hash: Some(blake3::hash(token.as_bytes())), made_at: now };
        (Self(Mutex::new(current)), token)
    }

    /// Uses a token up; `false` where it is not the one, was used before, or is too old.
    pub(crate) fn use_up(&self, token: &str, now: Instant) -> bool {
        let mut current = self.lock();
        let is_good = current.hash == Some(blake3::hash(token.as_bytes()))
            && now.saturating_duration_since(current.made_at) < GOOD;
        if is_good {
            current.hash = None;
        }
        is_good
    }

    /// Another token, in place of the last; `None` right after that.
    pub(crate) fn renew(&self, now: Instant) -> Option<String> {
        let mut current = self.lock();
        if now.saturating_duration_since(current.made_at) < PAUSE {
            return None;
        }
        let token = random();
        *current = Current { hash: Some(blake3::hash(token.as_bytes())), made_at: now };
        Some(token)
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        // Every change is one assignment: a panic elsewhere leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_once_and_for_ten_minutes() {
        let start = Instant::now();
        let (link, token) = Link::new(start);
        assert!(!link.use_up("", start) && !link.use_up(&token[1..], start));
        assert!(link.use_up(&token, start));
        assert!(!link.use_up(&token, start), "used before");
        let (link, token) = Link::new(start);
        assert!(!link.use_up(&token, start + GOOD), "too old");
        assert_eq!(link.renew(start), None, "a moment after the last");
        let later = start + GOOD;
        let other = link.renew(later).unwrap();
        assert!(!link.use_up(&token, later) && link.use_up(&other, later));
    }
}
