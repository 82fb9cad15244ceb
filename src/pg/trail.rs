//! The trail by pages: newest first, from spans of time that hold few rows, however many there are.

use std::fmt;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::inspect::AuditRow;

/// Where a row is: behind all rows that are newer. The trail has no key; rows of one batch have one time, so the place in the table
/// tells them apart. Rows of the default partition move once, when their own is made: then they get another place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Position {
    pub(crate) at: DateTime<Utc>,
    /// Its table, and its place there.
    pub(crate) table: i64,
    pub(crate) place: String,
}

impl Position {
    /// From its text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, '.');
        let at = DateTime::from_timestamp_micros(parts.next()?.parse().ok()?)?;
        let table = parts.next()?.parse().ok()?;
        let (block, row): (u32, u16) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { at, table, place: format!("({block},{row})") })
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place.trim_matches(['(', ')']).replace(',', ".");
        write!(f, "{}.{}.{place}", self.at.timestamp_micros(), self.table)
    }
}

/// Which rows; `None` means any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrailFilter {
    pub(crate) tenant: Option<String>,
    pub(crate) consumer: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) outcome: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) worker: Option<String>,
}

/// The newest rows of a span, from `since` on and before `until`; those that come after `after` alone, where it is given.
pub(crate) async fn trail_page(
    connection: &mut PgConnection,
    filter: &TrailFilter,
    since: DateTime<Utc>,
    until: DateTime<Utc>,
    after: Option<&Position>,
    limit: i64,
) -> Result<Vec<(Position, AuditRow)>, sqlx::Error> {
    let rows = sqlx::query_file!(
        "src/pg/trail_page.sql",
        since,
        until,
        after.map(|after| after.at),
        after.map(|after| after.table),
        after.map(|after| after.place.as_str()),
        filter.tenant.as_deref(),
        filter.consumer.as_deref(),
        filter.key.as_deref(),
        filter.outcome.as_deref(),
        filter.reason.as_deref(),
        filter.worker.as_deref(),
        limit
    )
    .fetch_all(connection)
    .await?;
    let rows = rows.into_iter().map(|row| {
        let position = Position { at: row.occurred_at, table: row.partition, place: row.place };
        let row = AuditRow {
            tenant: row.tenant,
            consumer: row.consumer,
            key: row.key,
            occurred_at: row.occurred_at,
            queue: row.queue,
            outcome: row.outcome,
            reason: row.reason,
            error_code: row.error_code,
            detail: row.detail,
            attempt: row.attempt,
            duration_us: row.duration_us,
            worker: row.worker,
            login: row.login,
            trace_id: row.trace_id,
        };
        (position, row)
    });
    Ok(rows.collect())
}

/// How many rows a span holds, counted up to `most`.
pub(crate) async fn rows_of_trail(
    connection: &mut PgConnection,
    since: DateTime<Utc>,
    until: DateTime<Utc>,
    most: i64,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(r#"select oncely.count_audit($1, $2, $3) as "count!""#, since, until, most)
        .fetch_one(connection)
        .await
}

/// Brings the trail's index on time up to date for what came last, so that whoever looks at it does not read the trail; `anew`: also where
/// there are summaries, which may be broken. Newest first, without the first `skip` ranges. Returns how many to skip next time, or `None`
/// when all is done; the same number where somebody is at work there.
pub(crate) async fn summarize_trail(
    connection: &mut PgConnection,
    anew: bool,
    skip: i32,
) -> Result<Option<i32>, sqlx::Error> {
    sqlx::query_scalar!("select oncely.summarize_audit($1, $2)", anew, skip).fetch_one(connection).await
}

/// When the oldest row of a span was decided: whoever asks chooses one that holds few.
pub(crate) async fn oldest_of_trail(
    connection: &mut PgConnection,
    since: Option<DateTime<Utc>>,
    until: Option<DateTime<Utc>>,
) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    sqlx::query_scalar!("select oncely.oldest_audit($1, $2)", since, until).fetch_one(connection).await
}

/// The beginning of the first week that has a partition.
pub(crate) async fn first_week_of_trail(
    connection: &mut PgConnection,
) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    sqlx::query_scalar!(
        "select to_date(min(right(c.relname, 8)), 'YYYYMMDD')::timestamp at time zone 'UTC'
        from pg_inherits as i
        join pg_class as c on c.oid = i.inhrelid
        where i.inhparent = 'oncely.audit'::regclass and c.relname ~ '^audit_[0-9]{8}$'"
    )
    .fetch_one(connection)
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_is_written() {
        let position = Position {
            at: DateTime::from_timestamp_micros(1_800_000_000_123_456).unwrap(),
            table: 16_500,
            place: "(12,3)".to_owned(),
        };
        assert_eq!(position.to_string(), "1800000000123456.16500.12.3");
        assert_eq!(Position::parse(&position.to_string()), Some(position));
        for junk in ["", "1", "1.2", "1.2.3", "1.2.3.4.5", "1.2.3.-4", "1.2.x.4", "9999999999999999999.1.1.1"]
        {
            assert_eq!(Position::parse(junk), None, "{junk}");
        }
    }
}
