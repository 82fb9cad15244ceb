//! Looking through the trail, newest first, without ever reading much at once.
//!
//! Its index on time knows only in which parts of the table a time is, so a question for the newest fifty of all would read all. The time is
//! walked back in steps instead, each longer than the one before, until there are enough rows, the beginning is reached, or a moment
//! has gone by: then the page says how far it has looked, and a link goes on from there.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use crate::pg::{AuditRow, Position, Session, TrailFilter, trail_page};

/// The first step back: ten thousand messages a second are twenty thousand rows.
const STEP: chrono::Duration = chrono::Duration::seconds(2);
/// How long a page looks.
pub(crate) const MOMENT: Duration = Duration::from_millis(200);

/// Where to look.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) filter: TrailFilter,
    pub(crate) since: DateTime<Utc>,
    /// Before this time.
    pub(crate) until: DateTime<Utc>,
    /// Behind this row.
    pub(crate) after: Option<Position>,
    pub(crate) limit: usize,
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) rows: Vec<(Position, AuditRow)>,
    /// All from here on was looked at; `None` where there are more rows than were asked for.
    pub(crate) down_to: Option<DateTime<Utc>>,
}

impl Found {
    /// Is there nothing left to look at?
    pub(crate) fn is_all(&self, look: &Look) -> bool {
        self.down_to.is_some_and(|at| at <= look.since)
    }
}

/// Looks, for `moment` at most.
///
/// # Errors
/// When a query fails; one that takes longer than the session allows, too.
pub(crate) async fn look(session: &mut Session, look: &Look, moment: Duration) -> Result<Found, sqlx::Error> {
    let began = Instant::now();
    let mut rows = Vec::new();
    // The row's own time is looked at again: others of its batch have it, too.
    let behind = look.after.as_ref().map(|after| after.at + chrono::Duration::microseconds(1));
    let mut upper = behind.map_or(look.until, |behind| behind.min(look.until));
    let mut step = STEP;
    loop {
        // A key goes through an index of its own, whatever the time.
        let lower = match look.filter.key {
            Some(_) => look.since,
            None => upper.checked_sub_signed(step).map_or(look.since, |lower| lower.max(look.since)),
        };
        let missing = i64::try_from(look.limit - rows.len()).unwrap_or(0) + 1;
        let found =
            trail_page(&mut session.connection, &look.filter, lower, upper, look.after.as_ref(), missing)
                .await?;
        let few = found.is_empty();
        rows.extend(found);
        if rows.len() > look.limit {
            rows.truncate(look.limit);
            return Ok(Found { rows, down_to: None });
        }
        if lower <= look.since || began.elapsed() >= moment {
            return Ok(Found { rows, down_to: Some(lower) });
        }
        upper = lower;
        step = step * if few { 16 } else { 4 };
    }
}
