//! Looking through the trail, newest first, without ever reading much at once: the console's pages and `oncely audit list`.
//!
//! Its index on time knows only in which parts of the table a time is, so a question for the newest fifty of all would read all. The time is
//! walked back in steps instead, each longer than the one before, until there are enough rows, the beginning is reached, or a moment
//! has gone by: then a page says how far it has looked, and a link goes on from there. How many rows a step holds nobody knows before: an hour
//! may hold none, and a second ten thousand. So they are counted first, as far as a step may go.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::pg::{
    AuditRow, Position, TrailFilter, first_week_of_trail, oldest_of_trail, rows_of_trail, trail_page,
};

/// The first step back, and the shortest: twenty thousand messages a second are five thousand rows.
const STEP: chrono::Duration = chrono::Duration::milliseconds(250);
/// No other step holds more rows. They are read within some ten milliseconds.
const DENSE: i64 = 20_000;
/// So many at last where nobody waits for a page and much is looked through: fewer, larger steps take less in all.
const DENSEST: i64 = 320_000;
/// How much longer a step gets, and how much shorter one that holds too much.
const LONGER: i32 = 64;
const SHORTER: i32 = 8;
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

/// Looks, for `moment` at most, or until all is seen. `now`: by the database's clock.
///
/// # Errors
/// When a query fails; one that takes longer than the session allows, too.
pub(crate) async fn look(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    look: &Look,
    moment: Option<Duration>,
) -> Result<Found, sqlx::Error> {
    let began = Instant::now();
    let mut rows = Vec::new();
    // The row's own time is looked at again: others of its batch have it, too.
    let behind = look.after.as_ref().map(|after| after.at + chrono::Duration::microseconds(1));
    let mut upper = behind.map_or(look.until, |behind| behind.min(look.until));
    let (mut step, mut dense) = (STEP, DENSE);
    loop {
        let lower = match look.filter.key {
            // A key goes through an index of its own, whatever the time.
            Some(_) => look.since,
            // What clocks may have put there.
            None if upper > now => now.max(look.since),
            None => upper.checked_sub_signed(step).map_or(look.since, |lower| lower.max(look.since)),
        };
        let held = match look.filter.key {
            None if step > STEP => rows_of_trail(connection, lower, upper, dense + 1).await?,
            _ => 0,
        };
        if held > dense {
            step = ((upper - lower) / SHORTER).max(STEP);
            if moment.is_none() && step == STEP {
                // All of this was counted for a step that counts nothing. Where rows are as close, the next would end like it.
                dense = (dense * 2).min(DENSEST);
            }
            continue;
        }
        let missing = i64::try_from(look.limit - rows.len()).unwrap_or(0) + 1;
        rows.extend(trail_page(connection, &look.filter, lower, upper, look.after.as_ref(), missing).await?);
        if rows.len() > look.limit {
            rows.truncate(look.limit);
            return Ok(Found { rows, down_to: None });
        }
        if lower <= look.since || moment.is_some_and(|moment| began.elapsed() >= moment) {
            return Ok(Found { rows, down_to: Some(lower) });
        }
        if upper <= now && held * i64::from(LONGER) <= dense {
            step = longer(step);
        }
        if moment.is_none() && held * i64::from(SHORTER) > dense {
            dense = (dense * 2).min(DENSEST);
            step = step * 2;
        }
        upper = lower;
    }
}

/// When the oldest row was decided; `None` where there is none.
///
/// # Errors
/// When a query fails.
pub(crate) async fn beginning(connection: &mut PgConnection) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    let (first, end) = (first_week_of_trail(connection).await?, DateTime::<Utc>::MAX_UTC);
    let Some(first) = first else {
        return oldest_of_trail(connection, None, None).await;
    };
    // What waits for a partition of its own.
    if let Some(before) = oldest_of_trail(connection, None, Some(first)).await? {
        return Ok(Some(before));
    }
    let (mut lower, mut step) = (first, STEP);
    loop {
        let upper = lower.checked_add_signed(step).unwrap_or(end);
        if step > STEP && rows_of_trail(connection, lower, upper, DENSE + 1).await? > DENSE {
            step = (step / SHORTER).max(STEP);
            continue;
        }
        let found = oldest_of_trail(connection, Some(lower), Some(upper)).await?;
        if found.is_some() || upper >= end {
            return Ok(found);
        }
        (lower, step) = (upper, longer(step));
    }
}

fn longer(step: chrono::Duration) -> chrono::Duration {
    step.checked_mul(LONGER).unwrap_or(step)
}
