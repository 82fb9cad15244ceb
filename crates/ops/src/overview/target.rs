//! Targets of relays.

use std::collections::BTreeMap;
use std::ops::Range;

use chrono::{DateTime, Utc};
use serde::Serialize;

use oncely_postgres::RelayStats;

/// The backlog of a target, from the relays' last report, and their work in the last minute.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TargetOverview {
    /// `redis` (mirror records) or `rabbitmq` (events).
    pub target: String,
    /// Waiting records, counted up to 10,000.
    pub records: i64,
    /// Age of the oldest one, in seconds.
    pub oldest_age: f64,
    /// Records that arrived in the last minute.
    pub relayed: i64,
    /// Attempts that failed in the last minute.
    pub failed: i64,
    /// Events that were parked in the last minute.
    pub parked: i64,
}

/// Sums up the work of a minute by target; the backlog is that of the last report, even if it came after the minute.
pub(super) fn sum_by_target(stats: &[RelayStats], minute: &Range<DateTime<Utc>>) -> Vec<TargetOverview> {
    let mut targets: BTreeMap<&str, TargetOverview> = BTreeMap::new();
    for span in stats {
        let target = targets.entry(&span.target).or_default();
        target.target.clone_from(&span.target);
        target.records = span.records;
        target.oldest_age = span.oldest_age;
        if minute.contains(&span.at) {
            target.relayed += span.relayed;
            target.failed += span.failed;
            target.parked += span.parked;
        }
    }
    targets.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_the_last_word_and_what_was_done_is_the_minutes() {
        let at = |seconds: i64| DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap();
        let span = |seconds, records| RelayStats {
            target: "redis".to_owned(),
            at: at(seconds),
            relayed: 5,
            failed: 1,
            parked: 0,
            records,
            oldest_age: 2.0,
        };
        let found = sum_by_target(&[span(0, 7), span(10, 8), span(60, 9)], &(at(0)..at(60)));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].relayed, found[0].failed, found[0].records), (10, 2, 9));
    }
}
