//! Work since the last span that is known to be written.

use chrono::{DateTime, DurationRound as _, TimeDelta, Utc};

use super::Totals;
use oncely_postgres::{ConsumerStats, RelayStats};

/// Length of a span.
const SPAN_LENGTH: TimeDelta = TimeDelta::seconds(10);
/// Maximum age of an open span: the database accepts spans of the last hour. Work that could not be written for this time is counted in the
/// current span; if it was written and only the reply was lost, it is counted twice.
const MAX_SPAN_AGE: TimeDelta = TimeDelta::minutes(50);
/// Maximum time by which an open span may begin in the future: the database accepts spans that begin in its next minute.
const MAX_SPAN_LEAD: TimeDelta = TimeDelta::seconds(30);

/// The open span. It stays open until its write is confirmed: if it is written again, the database keeps the last value.
#[derive(Debug, Default)]
pub(super) struct Spans {
    open: Option<DateTime<Utc>>,
    /// Totals at its start.
    base: Option<Totals>,
    /// Totals at its last write.
    written: Option<Totals>,
}

impl Spans {
    /// Opens the next span if the write of the open one is confirmed, or it is too old. Returns the start of the open span, and its work.
    pub(super) fn advance(&mut self, now: DateTime<Utc>, totals: &Totals) -> (DateTime<Utc>, Totals) {
        let slot = now.duration_trunc(SPAN_LENGTH).unwrap_or(now);
        let open = match self.open {
            // A clock that is set back keeps the open span; set back far, it opens a new one, since the open one would be in the future.
            Some(open) if slot <= open && open - slot <= MAX_SPAN_LEAD => open,
            Some(open) => match self.written.take() {
                Some(written) => {
                    self.base = Some(written);
                    slot
                }
                None if slot - open > MAX_SPAN_AGE => slot,
                None => open,
            },
            None => slot,
        };
        self.open = Some(open);
        (open, subtract_totals(totals, self.base.as_ref()))
    }

    /// Confirms the last write of the open span, with these totals: the next span begins with them.
    pub(super) fn confirm_write(&mut self, totals: Totals) {
        self.written = Some(totals);
    }
}

/// Subtracts the totals at the start of a span from the present ones.
fn subtract_totals(totals: &Totals, base: Option<&Totals>) -> Totals {
    match (totals, base) {
        (Totals::Worker(now), Some(Totals::Worker(before))) => Totals::Worker(
            now.iter()
                .map(|one| match before.iter().find(|base| base.consumer == one.consumer) {
                    Some(base) => subtract_consumer(one, base),
                    None => one.clone(),
                })
                .collect(),
        ),
        (Totals::Relay(now), Some(Totals::Relay(before))) => Totals::Relay(
            now.iter()
                .map(|one| match before.iter().find(|base| base.target == one.target) {
                    Some(base) => RelayStats {
                        relayed: one.relayed - base.relayed,
                        failed: one.failed - base.failed,
                        parked: one.parked - base.parked,
                        ..one.clone()
                    },
                    None => one.clone(),
                })
                .collect(),
        ),
        _ => totals.clone(),
    }
}

/// Subtracts a consumer's totals at the start of a span from the present ones.
fn subtract_consumer(now: &ConsumerStats, base: &ConsumerStats) -> ConsumerStats {
    ConsumerStats {
        consumer: now.consumer.clone(),
        at: now.at,
        delivered: now.delivered - base.delivered,
        completed: now.completed - base.completed,
        refused: now.refused - base.refused,
        duplicates: now.duplicates - base.duplicates,
        retried: now.retried - base.retried,
        postponed: now.postponed - base.postponed,
        dead_lettered: now.dead_lettered - base.dead_lettered,
        fallbacks: now.fallbacks - base.fallbacks,
        outages: now.outages - base.outages,
        durations: now.durations.iter().zip(&base.durations).map(|(now, base)| now - base).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_totals(completed: i64) -> Totals {
        let durations = vec![completed; oncely_core::durations::BUCKET_COUNT];
        let consumer = "payments".to_owned();
        Totals::Worker(vec![ConsumerStats { consumer, completed, durations, ..ConsumerStats::default() }])
    }

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_000_000_000 + seconds, 0).unwrap()
    }

    /// Returns the span and the number that are written at a time.
    fn write(spans: &mut Spans, seconds: i64, completed: i64, arrives: bool) -> (i64, i64) {
        let (span, work) = spans.advance(at(seconds), &to_totals(completed));
        if arrives {
            spans.confirm_write(to_totals(completed));
        }
        let Totals::Worker(work) = work else { panic!("not a worker's") };
        assert_eq!(work[0].durations[0], work[0].completed);
        ((span - at(0)).num_seconds(), work[0].completed)
    }

    #[test]
    fn each_completion_is_in_one_span() {
        let mut spans = Spans::default();
        assert_eq!(write(&mut spans, 3, 5, true), (0, 5));
        assert_eq!(write(&mut spans, 9, 7, true), (0, 7), "the same span again: the last word");
        assert_eq!(write(&mut spans, 13, 10, true), (10, 3));
        assert_eq!(write(&mut spans, 24, 14, false), (20, 4));
        assert_eq!(write(&mut spans, 34, 20, false), (20, 10), "whether the first arrived is not known");
        assert_eq!(write(&mut spans, 44, 21, true), (20, 11));
        assert_eq!(write(&mut spans, 54, 22, true), (50, 1));
        assert_eq!(write(&mut spans, 41, 25, true), (50, 4), "a clock that goes back opens no span anew");
        assert_eq!(write(&mut spans, 64, 26, false), (60, 1));
        assert_eq!(write(&mut spans, 4_000, 30, true), (4_000, 5), "the database takes no older span");
        assert_eq!(write(&mut spans, 400, 31, true), (400, 1), "and none of the future");
    }
}
