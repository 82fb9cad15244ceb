//! The audit trail by pages: newest first, read in spans of time that hold few rows, for a trail of any size.

use std::fmt;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::inspect::AuditRow;

/// The position of a row: after all newer rows. The trail has no key; rows of one batch have the same time, so their place in the table
/// distinguishes them. Rows of the default partition move once, when their own partition is created, and then have another place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub at: DateTime<Utc>,
    /// The table's oid and the row's place (ctid) in it.
    pub table: i64,
    pub ctid: String,
}

impl Position {
    /// Parses a position in the trail, as displayed; `None` if the text is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, '.');
        let at = DateTime::from_timestamp_micros(parts.next()?.parse().ok()?)?;
        let table = parts.next()?.parse().ok()?;
        let (block, row): (u32, u16) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { at, table, ctid: format!("({block},{row})") })
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ctid = self.ctid.trim_matches(['(', ')']).replace(',', ".");
        write!(f, "{}.{}.{ctid}", self.at.timestamp_micros(), self.table)
    }
}

/// A filter of rows; `None` matches any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrailFilter {
    pub tenant: Option<String>,
    pub consumer: Option<String>,
    pub key: Option<String>,
    pub outcome: Option<String>,
    pub reason: Option<String>,
    pub worker: Option<String>,
}

/// Reads up to `limit` rows of a span, from `since` on and before `until`, newest first. `after`: only rows behind this position; `None`
/// for all.
pub async fn read_trail_page(
    connection: &mut PgConnection,
    filter: &TrailFilter,
    since: DateTime<Utc>,
    until: DateTime<Utc>,
    after: Option<&Position>,
    limit: i64,
) -> sqlx::Result<Vec<(Position, AuditRow)>> {
    let rows = sqlx::query_file!(
        "src/trail_page.sql",
        since,
        until,
        after.map(|after| after.at),
        after.map(|after| after.table),
        after.map(|after| after.ctid.as_str()),
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
        let position = Position { at: row.occurred_at, table: row.partition, ctid: row.place };
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

/// Counts the rows of a span, up to `limit`.
pub async fn count_trail_rows(
    connection: &mut PgConnection,
    since: DateTime<Utc>,
    until: DateTime<Utc>,
    limit: i64,
) -> sqlx::Result<i64> {
    sqlx::query_scalar!(r#"select oncely.count_audit($1, $2, $3) as "count!""#, since, until, limit)
        .fetch_one(connection)
        .await
}

/// Summarises the newest ranges of the trail's index on time, so that queries don't read the whole trail; with `anew` also ranges that have
/// summaries, which may be broken. Newest first, without the first `skip` ranges. Returns the number to skip next time; `None` when all is
/// done; the same number if another session is summarising.
pub async fn summarize_trail(
    connection: &mut PgConnection,
    anew: bool,
    skip: i32,
) -> sqlx::Result<Option<i32>> {
    sqlx::query_scalar!("select oncely.summarize_audit($1, $2)", anew, skip).fetch_one(connection).await
}

/// Reads the time of the oldest row of a span; `None` if the span is empty. Callers choose spans with few rows.
pub async fn read_oldest_trail_time(
    connection: &mut PgConnection,
    since: Option<DateTime<Utc>>,
    until: Option<DateTime<Utc>>,
) -> sqlx::Result<Option<DateTime<Utc>>> {
    sqlx::query_scalar!("select oncely.oldest_audit($1, $2)", since, until).fetch_one(connection).await
}

/// Reads the start of the first week that has a partition; `None` without partitions.
pub async fn read_first_trail_week(connection: &mut PgConnection) -> sqlx::Result<Option<DateTime<Utc>>> {
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
            ctid: "(12,3)".to_owned(),
        };
        assert_eq!(position.to_string(), "1800000000123456.16500.12.3");
        assert_eq!(Position::parse(&position.to_string()), Some(position));
        for junk in ["", "1", "1.2", "1.2.3", "1.2.3.4.5", "1.2.3.-4", "1.2.x.4", "9999999999999999999.1.1.1"]
        {
            assert_eq!(Position::parse(junk), None, "{junk}");
        }
    }
}
