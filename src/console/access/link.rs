//! The one-time link that is printed where the console was started: whoever sees that terminal may come in.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::session::random;

/// How long a link is good for.
const GOOD: Duration = Duration::from_secs(600);
/// A new one is printed no sooner than this after the last.
const PAUSE: Duration = Duration::from_secs(5);

/// Tokens of links that are good now. Another link leaves those before it good: whoever asks for one takes nobody's away.
pub(crate) struct Link(Mutex<Known>);

struct Known {
    good: Vec<Made>,
    last: Instant,
}

struct Made {
    hash: blake3::Hash,
    at: Instant,
}

impl Link {
    /// With its first token.
    pub(crate) fn new(now: Instant) -> (Self, String) {
        let token = random();
        (Self(Mutex::new(Known { good: vec![made(&token, now)], last: now })), token)
    }

    /// Uses a token up; `false` where it is none of them, was used before, or is too old.
    pub(crate) fn use_up(&self, token: &str, now: Instant) -> bool {
        let hash = blake3::hash(token.as_bytes());
        let mut known = self.lock();
        known.good.retain(|made| is_good(made, now));
        let count = known.good.len();
        known.good.retain(|made| made.hash != hash);
        known.good.len() < count
    }

    /// Another token; `None` right after the last.
    pub(crate) fn renew(&self, now: Instant) -> Option<String> {
        let mut known = self.lock();
        if now.saturating_duration_since(known.last) < PAUSE {
            return None;
        }
        // Not more of them than there are pauses in the time that one is good for.
        known.good.retain(|made| is_good(made, now));
        known.last = now;
        let token = random();
        known.good.push(made(&token, now));
        Some(token)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Every change leaves the list whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn made(token: &str, at: Instant) -> Made {
    Made { hash: blake3::hash(token.as_bytes()), at }
}

fn is_good(made: &Made, now: Instant) -> bool {
    now.saturating_duration_since(made.at) < GOOD
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

    #[test]
    fn another_link_leaves_the_one_before_good() {
        let start = Instant::now();
        let (link, token) = Link::new(start);
        let other = link.renew(start + PAUSE).unwrap();
        assert!(link.use_up(&token, start + PAUSE) && link.use_up(&other, start + PAUSE));
    }
}
