//! Skips an unhealthy Redis. Pure: the time is an argument.

use std::time::{Duration, Instant};

/// Consecutive failures that open the breaker.
const FAILURES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A circuit breaker: opens after consecutive failures, then admits one try at a time, at growing intervals.
#[derive(Clone, Debug, Default)]
pub struct Breaker {
    failures: u32,
    open_until: Option<Instant>,
}

impl Breaker {
    /// Returns whether a call may be made now. While open, one call per pause is admitted.
    pub(crate) fn allows(&mut self, now: Instant) -> bool {
        match self.open_until {
            None => true,
            Some(until) if now < until => false,
            Some(_) => {
                self.open_until = Some(now + self.pause());
                true
            }
        }
    }

    /// Returns whether calls are skipped, except for one try per pause.
    pub(crate) fn is_open(&self) -> bool {
        self.open_until.is_some()
    }

    /// Lets the next call through without waiting for the end of the pause: a connection exists.
    pub(crate) fn allow_next_call(&mut self, now: Instant) {
        self.open_until = self.open_until.map(|until| until.min(now));
    }

    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Records a failure. Returns whether it opened the breaker.
    pub(crate) fn failed(&mut self, now: Instant) -> bool {
        self.failures = self.failures.saturating_add(1);
        if self.failures < FAILURES {
            return false;
        }
        let was_closed = self.open_until.is_none();
        self.open_until = Some(now + self.pause());
        was_closed
    }

    fn pause(&self) -> Duration {
        let doublings = self.failures.saturating_sub(FAILURES).min(6);
        (FIRST_PAUSE * 2_u32.pow(doublings)).min(LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_three_failures_and_lets_one_try_through_per_pause() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        assert!(!breaker.failed(start) && !breaker.failed(start) && breaker.allows(start));
        assert!(breaker.failed(start));
        assert!(!breaker.allows(start));
        let later = start + FIRST_PAUSE;
        assert!(breaker.allows(later));
        assert!(!breaker.allows(later), "one try only");
        assert!(!breaker.failed(later), "it was open already");
        assert!(!breaker.allows(later + FIRST_PAUSE), "the pause grows");
        breaker.allow_next_call(later);
        assert!(breaker.allows(later), "there is a connection");
        assert!(!breaker.allows(later), "and it may be worth nothing");
        breaker.succeeded();
        breaker.allow_next_call(later);
        assert!(breaker.allows(later) && !breaker.is_open());
    }
}
