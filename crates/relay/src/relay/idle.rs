//! Pauses between reads of an empty mirror queue.

use std::time::Duration;

/// Interval at which the counts are logged.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Pause before the next read: none after a full batch, longer and longer after empty ones.
pub(super) struct IdleBackoff {
    pause: Duration,
    min_pause: Duration,
    max_pause: Duration,
}

/// Shortest pause, as a rule.
pub(super) const MIN_PAUSE: Duration = Duration::from_millis(5);

impl IdleBackoff {
    pub(super) fn new(min_pause: Duration, max_pause: Duration) -> Self {
        let min_pause = min_pause.min(max_pause);
        Self { pause: min_pause, min_pause, max_pause }
    }

    /// Returns the pause after a read that found this many records: none after a full batch of `batch` records, the shortest one after
    /// some, and twice the previous one after none.
    pub(super) fn next_pause(&mut self, records: usize, batch: u32) -> Duration {
        if records > 0 {
            self.pause = self.min_pause;
            return if u32::try_from(records).is_ok_and(|records| records < batch) {
                self.pause
            } else {
                Duration::ZERO
            };
        }
        let pause = self.pause;
        self.pause = (self.pause * 2).min(self.max_pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_batch_means_go_on_and_empty_ones_mean_wait_longer() {
        let mut idle = IdleBackoff::new(MIN_PAUSE, Duration::from_millis(12));
        assert_eq!(idle.next_pause(100, 100), Duration::ZERO);
        assert_eq!(idle.next_pause(3, 100), Duration::from_millis(5));
        let pauses: Vec<u128> = (0..4).map(|_| idle.next_pause(0, 100).as_millis()).collect();
        assert_eq!(pauses, [5, 10, 12, 12]);
        assert_eq!(idle.next_pause(1, 100), Duration::from_millis(5));
    }
}
