//! Delays of a failed message, and the limit of its attempts.

use std::time::Duration;

/// Delays of retries, and limits of runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Delays after the first, second, … failed run; the last one repeats. Each has a queue in the broker.
    pub delays: Vec<Duration>,
    /// Maximum runs of the handler before the message is dead-lettered, including the first one.
    pub max_attempts: u32,
    /// Maximum runs after a redelivery that never reported their end, before the message is dead-lettered: the process crashed in each of
    /// them. Counted separately from the attempts, which have a known end.
    pub max_crashes: u32,
}

impl RetryPolicy {
    /// Returns the delay after the `attempt`-th run failed (counted from 1), or `None` if it was the last.
    #[must_use]
    pub fn delay_after(&self, attempt: u32) -> Option<Duration> {
        if attempt >= self.max_attempts {
            return None;
        }
        let rung = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX);
        self.delays.get(rung.min(self.delays.len().saturating_sub(1))).copied()
    }

    /// Returns the delay of the retry queue for a copy with this wait: the shortest that is long enough, otherwise the longest. `None` if
    /// there are no retry queues.
    #[must_use]
    pub fn rung_for(&self, wait: Duration) -> Option<Duration> {
        let long_enough = self.delays.iter().filter(|delay| **delay >= wait).min();
        long_enough.or_else(|| self.delays.iter().max()).copied()
    }

    /// Returns the longest total delay of a message, without the runs themselves.
    #[must_use]
    pub fn horizon(&self) -> Duration {
        (1..self.max_attempts).filter_map(|attempt| self.delay_after(attempt)).sum()
    }
}

impl Default for RetryPolicy {
    /// Allows six runs within about an hour and a quarter: long enough to roll back a deployment.
    fn default() -> Self {
        Self {
            delays: [1, 10, 60, 600, 3_600].map(Duration::from_secs).to_vec(),
            max_attempts: 6,
            max_crashes: 3,
        }
    }
}

/// Formats a delay as part of a queue's name: `500ms`, `10s`, `5m`, `2h`.
#[must_use]
pub fn rung_name(delay: Duration) -> String {
    let millis = delay.as_millis();
    match millis {
        _ if !millis.is_multiple_of(1_000) => format!("{millis}ms"),
        _ if !millis.is_multiple_of(60_000) => format!("{}s", millis / 1_000),
        _ if !millis.is_multiple_of(3_600_000) => format!("{}m", millis / 60_000),
        _ => format!("{}h", millis / 3_600_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_rung_repeats_until_the_attempts_are_used_up() {
        let policy = RetryPolicy {
            delays: vec![Duration::from_secs(1), Duration::from_secs(5)],
            max_attempts: 4,
            max_crashes: 3,
        };
        assert_eq!(policy.delay_after(1), Some(Duration::from_secs(1)));
        assert_eq!(policy.delay_after(2), Some(Duration::from_secs(5)));
        assert_eq!(policy.delay_after(3), Some(Duration::from_secs(5)));
        assert_eq!(policy.delay_after(4), None);
        assert_eq!(policy.delay_after(u32::MAX), None);
        assert_eq!(policy.horizon(), Duration::from_secs(11));
    }

    #[test]
    fn a_wait_is_spent_in_the_shortest_queue_that_is_long_enough() {
        let policy = RetryPolicy::default();
        let of = |seconds| policy.rung_for(Duration::from_secs(seconds)).map(|delay| delay.as_secs());
        assert_eq!([0, 1, 2, 60, 7_200].map(of), [1, 1, 10, 60, 3_600].map(Some));
        assert_eq!(RetryPolicy { delays: vec![], ..policy }.rung_for(Duration::from_secs(1)), None);
    }

    #[test]
    fn one_attempt_means_no_retry() {
        let policy = RetryPolicy { delays: vec![], max_attempts: 1, max_crashes: 3 };
        assert_eq!(policy.delay_after(1), None);
        assert_eq!(policy.horizon(), Duration::ZERO);
    }

    #[test]
    fn a_rung_is_named_in_its_largest_whole_unit() {
        for (millis, name) in
            [(500, "500ms"), (1_000, "1s"), (90_000, "90s"), (60_000, "1m"), (7_200_000, "2h")]
        {
            assert_eq!(rung_name(Duration::from_millis(millis)), name);
        }
    }

    proptest! {
        #[test]
        fn the_ladder_ends_never_falls_and_stays_below_its_horizon(
            mut delays in prop::collection::vec(1..100_000_u64, 1..8),
            max_attempts in 1..50_u32,
            attempt in any::<u32>(),
        ) {
            delays.sort_unstable();
            let delays: Vec<Duration> = delays.into_iter().map(Duration::from_millis).collect();
            let policy = RetryPolicy { delays: delays.clone(), max_attempts, max_crashes: 3 };
            prop_assert_eq!(policy.delay_after(attempt).is_none(), attempt >= max_attempts);
            let waits: Vec<Duration> = (1..).map_while(|attempt| policy.delay_after(attempt)).collect();
            prop_assert_eq!(waits.len() + 1, usize::try_from(max_attempts).unwrap());
            prop_assert!(waits.is_sorted() && waits.iter().all(|wait| delays.contains(wait)));
            prop_assert_eq!(waits.iter().sum::<Duration>(), policy.horizon());
        }

        /// Two delays never share a queue.
        #[test]
        fn a_rung_has_a_name_of_its_own(left in 1..10_000_000_u64, right in 1..10_000_000_u64, unit in 0..4_usize) {
            let unit = [1, 1_000, 60_000, 3_600_000][unit];
            let name = |millis| rung_name(Duration::from_millis(millis));
            prop_assert_eq!(name(left * unit) == name(right), left * unit == right);
            prop_assert_eq!(name(left) == name(right), left == right);
        }
    }
}
