//! Position of a follower in the trail: the rows that were sent, and the start of the next query. Knows no clock: times are the database's.

use std::collections::HashSet;

use chrono::{DateTime, Utc};

use oncely_postgres::Position;

/// Maximum age of a decision when it becomes visible: it has the time when its transaction began, and is visible from the commit on.
/// Decisions that commit later are in the list, but not sent to followers.
const MAX_DELAY: chrono::Duration = chrono::Duration::seconds(10);
/// Maximum age of rows that a reconnected follower gets, as far as a page shows; the list has the older ones.
const MAX_REPLAY_AGE: chrono::Duration = chrono::Duration::minutes(5);

/// Position of a follower.
#[derive(Debug)]
pub(super) struct TailPosition {
    /// The time when following began. The list has the rows before it.
    start: DateTime<Utc>,
    /// The time of the last query: all rows that had committed by then were found, whether or not any matched.
    last_query: DateTime<Utc>,
    /// Rows that were sent and may be found again.
    sent_rows: HashSet<Position>,
}

impl TailPosition {
    /// Creates a position that begins now, or after a row. The row may have a future time, from a previous primary with a faster clock.
    pub(super) fn new(now: DateTime<Utc>, after: Option<Position>) -> Self {
        let start = after.as_ref().map_or(now, |after| after.at.clamp(now - MAX_REPLAY_AGE, now));
        Self { start, last_query: start, sent_rows: after.into_iter().collect() }
    }

    /// Prepares a query at `now`, and returns its start. After a failover the clock may be behind: the rows that follow are older than some
    /// that were sent, but are new.
    pub(super) fn prepare_query(&mut self, now: DateTime<Utc>) -> DateTime<Utc> {
        self.start = self.start.min(now);
        self.last_query = self.last_query.min(now);
        self.start.max(self.last_query - MAX_DELAY)
    }

    /// Returns the rows of a query at `now` that were not sent before, and remembers them.
    pub(super) fn take_new<T>(
        &mut self,
        now: DateTime<Utc>,
        rows: impl IntoIterator<Item = (Position, T)>,
    ) -> Vec<(Position, T)> {
        let mut new_rows: Vec<_> = rows.into_iter().collect();
        new_rows.retain(|(position, _)| position.at >= self.start && self.sent_rows.insert(position.clone()));
        self.last_query = now;
        self.sent_rows.retain(|position| position.at >= now - MAX_DELAY);
        new_rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns this number of seconds after a fixed time.
    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    fn row(seconds: i64) -> (Position, i64) {
        (Position { at: at(seconds), table: 1, ctid: format!("(0,{})", seconds.abs() + 1) }, seconds)
    }

    /// Returns the rows sent by a query of a trail with these rows.
    fn query_rows(tail_position: &mut TailPosition, now: i64, trail: &[i64]) -> Vec<i64> {
        let since = tail_position.prepare_query(at(now));
        let rows: Vec<_> =
            trail.iter().map(|row_at| row(*row_at)).filter(|(row, _)| row.at >= since).collect();
        tail_position.take_new(at(now), rows).into_iter().map(|(_, seconds)| seconds).collect()
    }

    #[test]
    fn each_row_is_told_once_and_none_of_before() {
        let mut tail_position = TailPosition::new(at(0), None);
        let mut trail = vec![-8, -1];
        assert_eq!(query_rows(&mut tail_position, 2, &trail), [0; 0]);
        trail.push(3);
        assert_eq!(query_rows(&mut tail_position, 4, &trail), [3]);
        assert_eq!(query_rows(&mut tail_position, 6, &trail), [0; 0], "what was there before stays untold");
        // Begun at 1, committed after the others.
        trail.push(1);
        assert_eq!(query_rows(&mut tail_position, 8, &trail), [1]);
        assert_eq!(query_rows(&mut tail_position, 10, &trail), [0; 0]);
        let mut again = TailPosition::new(at(20), Some(row(3).0));
        trail.push(15);
        assert_eq!(query_rows(&mut again, 22, &trail), [15]);
        assert_eq!(query_rows(&mut again, 24, &trail), [0; 0]);
    }

    #[test]
    fn where_nothing_fits_a_look_goes_no_further_back_than_the_last() {
        let mut tail_position = TailPosition::new(at(0), None);
        for now in (2..600).step_by(2) {
            let since = tail_position.prepare_query(at(now));
            assert!(since >= at(now - 2) - MAX_DELAY, "{since} at {now}");
            tail_position.take_new::<()>(at(now), []);
        }
        // Begun before the last query, committed after it.
        assert_eq!(query_rows(&mut tail_position, 600, &[591]), [591]);
    }

    #[test]
    fn a_clock_that_is_behind_the_one_of_before_silences_nobody() {
        let mut tail_position = TailPosition::new(at(0), Some(row(3_600).0));
        assert_eq!(query_rows(&mut tail_position, 2, &[1]), [1]);
        let mut tail_position = TailPosition::new(at(3_600), None);
        assert_eq!(query_rows(&mut tail_position, 3_602, &[3_601]), [3_601]);
        // A failover.
        assert_eq!(query_rows(&mut tail_position, 10, &[10, 3_601]), [10]);
        assert_eq!(query_rows(&mut tail_position, 12, &[10, 11, 3_601]), [11]);
    }

    #[test]
    fn what_is_told_is_forgotten_when_no_look_finds_it_any_more() {
        let mut tail_position = TailPosition::new(at(0), None);
        for now in 1..1_000 {
            assert_eq!(query_rows(&mut tail_position, now, &[now]), [now]);
        }
        assert!(tail_position.sent_rows.len() <= 11, "{}", tail_position.sent_rows.len());
    }
}
