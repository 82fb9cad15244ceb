//! Work of consumers in the last minute, from `oncely.stats`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use chrono::{DateTime, DurationRound as _, TimeDelta, Utc};

use oncely_core::durations::{BUCKET_COUNT, quantile};
use oncely_postgres::ConsumerStats;

/// Length of the spans in which processes write statistics.
pub const SPAN_LENGTH: Duration = Duration::from_secs(10);
/// Number of spans in a minute.
const SPANS_PER_MINUTE: usize = 6;

/// Work of a consumer in the last minute, summed over all processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RecentCounts {
    pub(crate) delivered: i64,
    /// Completed and refused.
    pub(crate) done: i64,
    pub(crate) duplicates: i64,
    pub(crate) retried: i64,
    pub(crate) dead_lettered: i64,
    /// `done` by span, the oldest first.
    pub(crate) done_by_span: [i64; SPANS_PER_MINUTE],
    /// By bucket ([`oncely_core::durations::BUCKET_BOUNDS`]).
    durations: Vec<i64>,
}

impl RecentCounts {
    /// Returns the duration in seconds that this share of all deliveries did not exceed; `None` without deliveries.
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        quantile(&self.durations, share)
    }
}

/// Returns the last minute that all processes have reported: each writes a span within ten seconds of its end.
pub(super) fn last_minute(now: DateTime<Utc>) -> Range<DateTime<Utc>> {
    let end = (now - TimeDelta::seconds(10)).duration_trunc(TimeDelta::seconds(10)).unwrap_or(now);
    end - TimeDelta::minutes(1)..end
}

/// Sums up the work of a minute by consumer.
pub(super) fn sum_by_consumer(
    stats: &[ConsumerStats],
    minute: &Range<DateTime<Utc>>,
) -> BTreeMap<String, RecentCounts> {
    let mut counts: BTreeMap<String, RecentCounts> = BTreeMap::new();
    for span in stats.iter().filter(|span| minute.contains(&span.at)) {
        let recent = counts.entry(span.consumer.clone()).or_default();
        let done = span.completed + span.refused;
        recent.delivered += span.delivered;
        recent.done += done;
        recent.duplicates += span.duplicates;
        recent.retried += span.retried;
        recent.dead_lettered += span.dead_lettered;
        let index = usize::try_from((span.at - minute.start).num_seconds() / 10).unwrap_or(0);
        recent.done_by_span[index.min(SPANS_PER_MINUTE - 1)] += done;
        recent.durations.resize(BUCKET_COUNT, 0);
        for (sum, count) in recent.durations.iter_mut().zip(&span.durations) {
            *sum += count;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_minute_is_six_spans_that_are_over() {
        let at = |seconds: i64| DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap();
        let minute = last_minute(at(79));
        assert_eq!(minute, at(0)..at(60));
        let span = |seconds: i64, completed: i64| ConsumerStats {
            consumer: "payments".to_owned(),
            at: at(seconds),
            completed,
            refused: 1,
            durations: (0..20).map(|bucket| if bucket == 4 { completed } else { 0 }).collect(),
            ..ConsumerStats::default()
        };
        let stats = [span(-10, 100), span(0, 2), span(50, 4), span(50, 4), span(60, 100)];
        let found = sum_by_consumer(&stats, &minute);
        let recent = &found["payments"];
        assert_eq!((recent.done, recent.done_by_span), (13, [3, 0, 0, 0, 0, 10]));
        let median = recent.quantile(0.5).unwrap();
        assert!((0.005..=0.01).contains(&median), "{median}");
        assert_eq!(RecentCounts::default().quantile(0.5), None);
    }
}
