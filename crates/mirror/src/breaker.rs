//! Skips an unhealthy Redis. Pure: the time is an argument.

use std::time::{Duration, Instant};

/// Number of consecutive failures that open the breaker.
const OPENING_FAILURES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// A circuit breaker: opens after consecutive failures, then admits one try at a time, at growing intervals.
#[derive(Clone, Debug, Default)]
pub struct Breaker {
    failures: u32,
    open_until: Option<Instant>,
}

impl Breaker {
    /// Admits a call, or returns false. While open, admits one call per pause: admitting it begins the next pause.
    pub(crate) fn try_admit(&mut self, now: Instant) -> bool {
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

    /// Closes the breaker, and forgets all failures.
    pub(crate) fn record_success(&mut self) {
        *self = Self::default();
    }

    /// Records a failure. Returns whether it opened the breaker.
    pub(crate) fn record_failure(&mut self, now: Instant) -> bool {
        self.failures = self.failures.saturating_add(1);
        if self.failures < OPENING_FAILURES {
            return false;
        }
        let was_closed = self.open_until.is_none();
        self.open_until = Some(now + self.pause());
        was_closed
    }

    /// Returns the length of the next pause, which doubles with each failure.
    fn pause(&self) -> Duration {
        let doublings = self.failures.saturating_sub(OPENING_FAILURES).min(6);
        (FIRST_PAUSE * 2_u32.pow(doublings)).min(MAX_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_three_failures_and_lets_one_try_through_per_pause() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        assert!(!breaker.record_failure(start) && !breaker.record_failure(start) && breaker.try_admit(start));
        assert!(breaker.record_failure(start));
        assert!(!breaker.try_admit(start));
        let later = start + FIRST_PAUSE;
        assert!(breaker.try_admit(later));
        assert!(!breaker.try_admit(later), "one try only");
        assert!(!breaker.record_failure(later), "it was open already");
        assert!(!breaker.try_admit(later + FIRST_PAUSE), "the pause grows");
        breaker.allow_next_call(later);
        assert!(breaker.try_admit(later), "there is a connection");
        assert!(!breaker.try_admit(later), "and it may be worth nothing");
        breaker.record_success();
        breaker.allow_next_call(later);
        assert!(breaker.try_admit(later) && !breaker.is_open());
    }
}
