//! How far somebody has followed the trail: what was told, and from when on is looked again. Knows no clock: the time is the database's.

use std::collections::HashSet;

use chrono::{DateTime, Utc};

use crate::pg::Position;

/// A decision is told when its transaction has committed, and carries the time when it began: what is not told yet may be so old. What is
/// committed later still is in the list, and not in what is followed.
const LATE: chrono::Duration = chrono::Duration::seconds(10);
/// Not further back than a page shows: who was away for longer looks at the list.
const FAR: chrono::Duration = chrono::Duration::minutes(5);

/// How far it is.
#[derive(Debug)]
pub(super) struct Following {
    /// When it began. What was there before is in the list.
    from: DateTime<Utc>,
    /// The time of the last look: all that had committed by then was found, whether anything fitted or not.
    looked: DateTime<Utc>,
    /// Rows that were told and may be found again.
    told: HashSet<Position>,
}

impl Following {
    /// Begins now, or goes on behind a row. That may carry a time to come: of a primary whose clock was ahead of this one's.
    pub(super) fn begin(now: DateTime<Utc>, after: Option<Position>) -> Self {
        let from = after.as_ref().map_or(now, |after| after.at.clamp(now - FAR, now));
        Self { from, looked: from, told: after.into_iter().collect() }
    }

    /// From when on the next look goes. Behind a failover the clock may be behind: what comes then is younger than nothing that was told,
    /// and new all the same.
    pub(super) fn since(&mut self, now: DateTime<Utc>) -> DateTime<Utc> {
        self.from = self.from.min(now);
        self.looked = self.looked.min(now);
        self.from.max(self.looked - LATE)
    }

    /// What is new of what a look at `now` has found.
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

    /// So many seconds after some time.
    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    fn row(seconds: i64) -> (Position, i64) {
        (Position { at: at(seconds), table: 1, place: format!("(0,{})", seconds.abs() + 1) }, seconds)
    }

    /// What a look tells of a trail that holds these rows by then.
    fn look(following: &mut Following, now: i64, trail: &[i64]) -> Vec<i64> {
        let since = following.since(at(now));
        let found: Vec<_> =
            trail.iter().map(|row_at| row(*row_at)).filter(|(row, _)| row.at >= since).collect();
        following.take(at(now), found).into_iter().map(|(_, seconds)| seconds).collect()
    }

    #[test]
    fn each_row_is_told_once_and_none_of_before() {
        let mut following = Following::begin(at(0), None);
        let mut trail = vec![-8, -1];
        assert_eq!(look(&mut following, 2, &trail), [0; 0]);
        trail.push(3);
        assert_eq!(look(&mut following, 4, &trail), [3]);
        assert_eq!(look(&mut following, 6, &trail), [0; 0], "what was there before stays untold");
        // Begun at 1, committed behind the others.
        trail.push(1);
        assert_eq!(look(&mut following, 8, &trail), [1]);
        assert_eq!(look(&mut following, 10, &trail), [0; 0]);
        let mut again = Following::begin(at(20), Some(row(3).0));
        trail.push(15);
        assert_eq!(look(&mut again, 22, &trail), [15]);
        assert_eq!(look(&mut again, 24, &trail), [0; 0]);
    }

    #[test]
    fn where_nothing_fits_a_look_goes_no_further_back_than_the_last() {
        let mut following = Following::begin(at(0), None);
        for now in (2..600).step_by(2) {
            let since = following.since(at(now));
            assert!(since >= at(now - 2) - LATE, "{since} at {now}");
            following.take::<()>(at(now), []);
        }
        // What has begun before the last look, and commits behind it.
        assert_eq!(look(&mut following, 600, &[591]), [591]);
    }

    #[test]
    fn a_clock_that_is_behind_the_one_of_before_silences_nobody() {
        let mut following = Following::begin(at(0), Some(row(3_600).0));
        assert_eq!(look(&mut following, 2, &[1]), [1]);
        let mut following = Following::begin(at(3_600), None);
        assert_eq!(look(&mut following, 3_602, &[3_601]), [3_601]);
        // A failover.
        assert_eq!(look(&mut following, 10, &[10, 3_601]), [10]);
        assert_eq!(look(&mut following, 12, &[10, 11, 3_601]), [11]);
    }

    #[test]
    fn what_is_told_is_forgotten_when_no_look_finds_it_any_more() {
        let mut following = Following::begin(at(0), None);
        for now in 1..1_000 {
            assert_eq!(look(&mut following, now, &[now]), [now]);
        }
        assert!(following.told.len() <= 11, "{}", following.told.len());
    }
}
