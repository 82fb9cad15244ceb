//! Position of a follower in the trail: the rows that were sent, and the start of the next query. Knows no clock: times are the database's.

use std::collections::HashSet;

use chrono::{DateTime, Utc};

use oncely_postgres::Position;

/// Maximum age of a decision when it becomes visible: it has the time when its transaction began, and is visible from the commit on.
/// Decisions that commit later are in the list, but not sent to followers.
const LATE: chrono::Duration = chrono::Duration::seconds(10);
/// Maximum age of rows that a reconnected follower gets, as far as a page shows; the list has the older ones.
const FAR: chrono::Duration = chrono::Duration::minutes(5);

/// Position of a follower.
#[derive(Debug)]
pub(super) struct TailPosition {
    /// When following began. The list has the rows before it.
    from: DateTime<Utc>,
    /// The time of the last query: all rows that had committed by then were found, whether or not any matched.
    looked: DateTime<Utc>,
    /// Rows that were sent and may be found again.
    told: HashSet<Position>,
}

impl TailPosition {
    /// Begins now, or after a row. The row may have a future time, from a previous primary with a faster clock.
    pub(super) fn begin(now: DateTime<Utc>, after: Option<Position>) -> Self {
        let from = after.as_ref().map_or(now, |after| after.at.clamp(now - FAR, now));
        Self { from, looked: from, told: after.into_iter().collect() }
    }

    /// Returns the start of the next query. After a failover the clock may be behind: the rows that follow are older than some that were
    /// sent, but are new.
    pub(super) fn since(&mut self, now: DateTime<Utc>) -> DateTime<Utc> {
        self.from = self.from.min(now);
        self.looked = self.looked.min(now);
        self.from.max(self.looked - LATE)
    }

    /// Returns the new rows of a query at `now`.
    pub(super) fn take<T>(
        &mut self,
        now: DateTime<Utc>,
        found: impl IntoIterator<Item = (Position, T)>,
    ) -> Vec<(Position, T)> {
        let mut new: Vec<_> = found.into_iter().collect();
        new.retain(|(position, _)| position.at >= self.from && self.told.insert(position.clone()));
        self.looked = now;
        self.told.retain(|position| position.at >= now - LATE);
        new
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
        (Position { at: at(seconds), table: 1, place: format!("(0,{})", seconds.abs() + 1) }, seconds)
    }

    /// Returns the rows sent by a query of a trail with these rows.
    fn look(following: &mut TailPosition, now: i64, trail: &[i64]) -> Vec<i64> {
        let since = following.since(at(now));
        let found: Vec<_> =
            trail.iter().map(|row_at| row(*row_at)).filter(|(row, _)| row.at >= since).collect();
        following.take(at(now), found).into_iter().map(|(_, seconds)| seconds).collect()
    }

    #[test]
    fn each_row_is_told_once_and_none_of_before() {
        let mut following = TailPosition::begin(at(0), None);
        let mut trail = vec![-8, -1];
        assert_eq!(look(&mut following, 2, &trail), [0; 0]);
        trail.push(3);
        assert_eq!(look(&mut following, 4, &trail), [3]);
        assert_eq!(look(&mut following, 6, &trail), [0; 0], "what was there before stays untold");
        // Begun at 1, committed after the others.
        trail.push(1);
        assert_eq!(look(&mut following, 8, &trail), [1]);
        assert_eq!(look(&mut following, 10, &trail), [0; 0]);
        let mut again = TailPosition::begin(at(20), Some(row(3).0));
        trail.push(15);
        assert_eq!(look(&mut again, 22, &trail), [15]);
        assert_eq!(look(&mut again, 24, &trail), [0; 0]);
    }

    #[test]
    fn where_nothing_fits_a_look_goes_no_further_back_than_the_last() {
        let mut following = TailPosition::begin(at(0), None);
        for now in (2..600).step_by(2) {
            let since = following.since(at(now));
            assert!(since >= at(now - 2) - LATE, "{since} at {now}");
            following.take::<()>(at(now), []);
        }
        // Begun before the last query, committed after it.
        assert_eq!(look(&mut following, 600, &[591]), [591]);
    }

    #[test]
    fn a_clock_that_is_behind_the_one_of_before_silences_nobody() {
        let mut following = TailPosition::begin(at(0), Some(row(3_600).0));
        assert_eq!(look(&mut following, 2, &[1]), [1]);
        let mut following = TailPosition::begin(at(3_600), None);
        assert_eq!(look(&mut following, 3_602, &[3_601]), [3_601]);
        // A failover.
        assert_eq!(look(&mut following, 10, &[10, 3_601]), [10]);
        assert_eq!(look(&mut following, 12, &[10, 11, 3_601]), [11]);
    }

    #[test]
    fn what_is_told_is_forgotten_when_no_look_finds_it_any_more() {
        let mut following = TailPosition::begin(at(0), None);
        for now in 1..1_000 {
            assert_eq!(look(&mut following, now, &[now]), [now]);
        }
        assert!(following.told.len() <= 11, "{}", following.told.len());
    }
}
