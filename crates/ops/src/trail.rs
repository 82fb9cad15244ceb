//! Search of the trail, newest first, in bounded queries: for the console's pages and `oncely audit list`.
//!
//! Its index on time only knows in which parts of the table a time is, so a query for the newest fifty rows would read the whole table.
//! Instead, the search walks back in steps, each longer than the previous one, until it has enough rows, reaches the start, or a time limit
//! has passed: then a page shows how far it has searched, and a link continues from there. The number of rows in a step can't be predicted:
//! an hour may have none, and a second ten thousand. So they are counted first, up to the limit of a step.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use oncely_postgres::{
    AuditRow, Position, TrailFilter, count_trail_rows, read_first_trail_week, read_oldest_trail_time,
    read_trail_page,
};

/// The first and shortest step: twenty thousand messages a second are five thousand rows.
const FIRST_STEP: chrono::Duration = chrono::Duration::milliseconds(250);
/// Maximum number of rows in any other step. They are read within some ten milliseconds.
const MAX_STEP_ROWS: i64 = 20_000;
/// Limit for long searches without a waiting page: fewer, larger steps take less time in total.
const MAX_LONG_STEP_ROWS: i64 = 320_000;
/// Factor by which a step grows, and divisor of one with too many rows.
const GROWTH: i32 = 64;
const SHRINKAGE: i32 = 8;
/// Time limit of a page's search.
pub const PAGE_SEARCH_TIME: Duration = Duration::from_millis(200);

/// A search.
#[derive(Clone, Debug)]
pub struct TrailQuery {
    pub filter: TrailFilter,
    pub since: DateTime<Utc>,
    /// Exclusive.
    pub until: DateTime<Utc>,
    /// Only rows after this position.
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
    pub fn is_complete(&self, query: &TrailQuery) -> bool {
        self.down_to.is_some_and(|at| at <= query.since)
    }
}

/// Searches the trail, newest first, until there are enough rows, the range is searched, or `time_limit` has passed. `now`: by the
/// database's clock.
///
/// # Errors
/// If a query fails, or takes longer than the session allows.
pub async fn search_trail(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    query: &TrailQuery,
    time_limit: Option<Duration>,
) -> Result<TrailPage, sqlx::Error> {
    let began = Instant::now();
    let mut rows = Vec::new();
    // The row's own time is searched again: other rows of its batch have it, too.
    let resume_time = query.after.as_ref().map(|after| after.at + chrono::Duration::microseconds(1));
    let mut upper = resume_time.map_or(query.until, |resume_time| resume_time.min(query.until));
    let (mut step, mut max_rows) = (FIRST_STEP, MAX_STEP_ROWS);
    loop {
        let lower = match query.filter.key {
            // A key has an index of its own, independent of time.
            Some(_) => query.since,
            // Rows with a future time, written by fast clocks.
            None if upper > now => now.max(query.since),
            None => upper.checked_sub_signed(step).map_or(query.since, |lower| lower.max(query.since)),
        };
        let row_count = match query.filter.key {
            None if step > FIRST_STEP => count_trail_rows(connection, lower, upper, max_rows + 1).await?,
            _ => 0,
        };
        if row_count > max_rows {
            step = ((upper - lower) / SHRINKAGE).max(FIRST_STEP);
            if time_limit.is_none() && step == FIRST_STEP {
                // Counted in vain, down to a step that counts nothing. At the same density, the next one would end like this.
                max_rows = (max_rows * 2).min(MAX_LONG_STEP_ROWS);
            }
            continue;
        }
        let missing = i64::try_from(query.limit - rows.len()).unwrap_or(0) + 1;
        rows.extend(
            read_trail_page(connection, &query.filter, lower, upper, query.after.as_ref(), missing).await?,
        );
        if rows.len() > query.limit {
            rows.truncate(query.limit);
            return Ok(TrailPage { rows, down_to: None });
        }
        if lower <= query.since || time_limit.is_some_and(|time_limit| began.elapsed() >= time_limit) {
            return Ok(TrailPage { rows, down_to: Some(lower) });
        }
        if upper <= now && row_count * i64::from(GROWTH) <= max_rows {
            step = lengthen(step);
        }
        if time_limit.is_none() && row_count * i64::from(SHRINKAGE) > max_rows {
            max_rows = (max_rows * 2).min(MAX_LONG_STEP_ROWS);
            step = step * 2;
        }
        upper = lower;
    }
}

/// Finds the time of the oldest row of the trail, in bounded queries; `None` if the trail is empty.
///
/// # Errors
/// If a query fails.
pub async fn find_oldest_time(connection: &mut PgConnection) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    let (first, end) = (read_first_trail_week(connection).await?, DateTime::<Utc>::MAX_UTC);
    let Some(first) = first else {
        return read_oldest_trail_time(connection, None, None).await;
    };
    // Rows that wait for a partition of their own.
    if let Some(before) = read_oldest_trail_time(connection, None, Some(first)).await? {
        return Ok(Some(before));
    }
    let (mut lower, mut step) = (first, FIRST_STEP);
    loop {
        let upper = lower.checked_add_signed(step).unwrap_or(end);
        if step > FIRST_STEP
            && count_trail_rows(connection, lower, upper, MAX_STEP_ROWS + 1).await? > MAX_STEP_ROWS
        {
            step = (step / SHRINKAGE).max(FIRST_STEP);
            continue;
        }
        let found = read_oldest_trail_time(connection, Some(lower), Some(upper)).await?;
        if found.is_some() || upper >= end {
            return Ok(found);
        }
        (lower, step) = (upper, lengthen(step));
    }
}

/// Returns the next longer step; the same one if it would be out of range.
fn lengthen(step: chrono::Duration) -> chrono::Duration {
    step.checked_mul(GROWTH).unwrap_or(step)
}
