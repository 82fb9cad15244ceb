//! Search of the trail, newest first, in bounded queries: for the console's pages and `oncely audit list`.
//!
//! Its index on time only knows in which parts of the table a time is, so a query for the newest fifty rows would read the whole table.
//! Instead, the search walks back in steps, each longer than the previous one, until it has enough rows, reaches the beginning, or a time
//! limit has passed: then a page shows how far it has searched, and a link continues from there. The number of rows in a step can't be
//! predicted: an hour may have none, and a second ten thousand. So they are counted first, up to the limit of a step.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use oncely_postgres::{
    AuditRow, Position, TrailFilter, first_week_of_trail, oldest_of_trail, rows_of_trail, trail_page,
};

/// The first and shortest step: twenty thousand messages a second are five thousand rows.
const STEP: chrono::Duration = chrono::Duration::milliseconds(250);
/// Maximum number of rows in any other step. They are read within some ten milliseconds.
const DENSE: i64 = 20_000;
/// Limit for long searches without a waiting page: fewer, larger steps take less time in total.
const DENSEST: i64 = 320_000;
/// Factor by which a step grows, and divisor of one with too many rows.
const LONGER: i32 = 64;
const SHORTER: i32 = 8;
/// Time limit of a page's search.
pub const MOMENT: Duration = Duration::from_millis(200);

/// A search.
#[derive(Clone, Debug)]
pub struct TrailQuery {
    pub filter: TrailFilter,
    pub since: DateTime<Utc>,
    /// Exclusive.
    pub until: DateTime<Utc>,
    /// Only rows after this one.
    pub after: Option<Position>,
    pub limit: usize,
}

/// Result of a search.
#[derive(Debug)]
pub struct TrailPage {
    pub rows: Vec<(Position, AuditRow)>,
    /// Everything from this time on was searched; `None` if there are more rows than requested.
    pub down_to: Option<DateTime<Utc>>,
}

impl TrailPage {
    /// Returns whether the whole range was searched.
    pub fn is_all(&self, look: &TrailQuery) -> bool {
        self.down_to.is_some_and(|at| at <= look.since)
    }
}

/// Searches, for `moment` at most, or until the end. `now`: by the database's clock.
///
/// # Errors
/// If a query fails, or takes longer than the session allows.
pub async fn search_trail(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    look: &TrailQuery,
    moment: Option<Duration>,
) -> Result<TrailPage, sqlx::Error> {
    let began = Instant::now();
    let mut rows = Vec::new();
    // The row's own time is searched again: other rows of its batch have it, too.
    let behind = look.after.as_ref().map(|after| after.at + chrono::Duration::microseconds(1));
    let mut upper = behind.map_or(look.until, |behind| behind.min(look.until));
    let (mut step, mut dense) = (STEP, DENSE);
    loop {
        let lower = match look.filter.key {
            // A key has an index of its own, independent of time.
            Some(_) => look.since,
            // Rows with a future time, written by fast clocks.
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
                // Counted in vain, down to a step that counts nothing. At the same density, the next one would end like this.
                dense = (dense * 2).min(DENSEST);
            }
            continue;
        }
        let missing = i64::try_from(look.limit - rows.len()).unwrap_or(0) + 1;
        rows.extend(trail_page(connection, &look.filter, lower, upper, look.after.as_ref(), missing).await?);
        if rows.len() > look.limit {
            rows.truncate(look.limit);
            return Ok(TrailPage { rows, down_to: None });
        }
        if lower <= look.since || moment.is_some_and(|moment| began.elapsed() >= moment) {
            return Ok(TrailPage { rows, down_to: Some(lower) });
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

/// Returns when the oldest row was decided; `None` if the trail is empty.
///
/// # Errors
/// If a query fails.
pub async fn beginning(connection: &mut PgConnection) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    let (first, end) = (first_week_of_trail(connection).await?, DateTime::<Utc>::MAX_UTC);
    let Some(first) = first else {
        return oldest_of_trail(connection, None, None).await;
    };
    // Rows that wait for a partition of their own.
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
