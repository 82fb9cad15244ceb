//! Pauses between reads of an empty mirror queue.

use std::time::Duration;

/// Interval at which the counts are logged.
pub(super) const REPORT: Duration = Duration::from_secs(10);

/// Pause before the next read: none after a full batch, longer and longer after empty ones.
pub(super) struct IdleBackoff {
    pause: Duration,
    longest: Duration,
}

/// Shortest pause.
pub(super) const SHORTEST: Duration = Duration::from_millis(5);

impl IdleBackoff {
    pub(super) fn new(longest: Duration) -> Self {
        Self { pause: SHORTEST.min(longest), longest }
    }

    pub(super) fn after(&mut self, records: usize, batch: u32) -> Duration {
        if records > 0 {
            self.pause = SHORTEST.min(self.longest);
            return if u32::try_from(records).is_ok_and(|records| records < batch) {
                self.pause
            } else {
                Duration::ZERO
            };
        }
        let pause = self.pause;
        self.pause = (self.pause * 2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_batch_means_go_on_and_empty_ones_mean_wait_longer() {
        let mut idle = IdleBackoff::new(Duration::from_millis(12));
        assert_eq!(idle.after(100, 100), Duration::ZERO);
        assert_eq!(idle.after(3, 100), Duration::from_millis(5));
        let pauses: Vec<u128> = (0..4).map(|_| idle.after(0, 100).as_millis()).collect();
        assert_eq!(pauses, [5, 10, 12, 12]);
        assert_eq!(idle.after(1, 100), Duration::from_millis(5));
    }
}
