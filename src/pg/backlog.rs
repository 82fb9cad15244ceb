//! What waits, and how the tables fare: the gauges of a relay. Every answer costs an index probe, or is counted up to a limit.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// What waits, at one time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Backlog {
    pub(crate) mirror_records: i64,
    pub(crate) oldest_mirror_record: Option<DateTime<Utc>>,
    pub(crate) due_events: i64,
    pub(crate) oldest_due_event: Option<DateTime<Utc>>,
    pub(crate) parked_events: i64,
    /// Tenants of which open dead letters are not stored.
    pub(crate) over_quota: i64,
    /// As PostgreSQL estimates.
    pub(crate) keys: i64,
    pub(crate) keys_in_progress: i64,
    pub(crate) keys_failed: i64,
    /// Beginning of the last week that has an audit partition.
    pub(crate) last_partition: Option<DateTime<Utc>>,
    /// When the oldest transaction that holds back vacuum began, as far as the login may see others' (`pg_read_all_stats`).
    pub(crate) oldest_transaction: Option<DateTime<Utc>>,
}

/// What waits now, by the database's clock.
pub(crate) async fn backlog(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
) -> Result<Backlog, sqlx::Error> {
    sqlx::query_file_as!(Backlog, "src/pg/backlog.sql", now).fetch_one(connection).await
}

/// Dead letters of a consumer that wait for somebody.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WaitingLetters {
    pub(crate) consumer: String,
    pub(crate) waiting: i64,
    pub(crate) oldest: DateTime<Utc>,
}

/// Dead letters that wait for this reason, by consumer.
pub(crate) async fn waiting_letters_of(
    connection: &mut PgConnection,
    reason: &str,
) -> Result<Vec<WaitingLetters>, sqlx::Error> {
    sqlx::query_as!(
        WaitingLetters,
        r#"select consumer, count(*) as "waiting!", oncely.bounded(min(updated_at)) as "oldest!"
        from oncely.dead_letters
        where state = 'waiting' and reason = $1
        group by consumer
        order by consumer"#,
        reason
    )
    .fetch_all(connection)
    .await
}

/// Dead letters that are open, by consumer.
pub(crate) async fn waiting_letters(
    connection: &mut PgConnection,
) -> Result<Vec<WaitingLetters>, sqlx::Error> {
    sqlx::query_as!(
        WaitingLetters,
        r#"select consumer, count(*) as "waiting!", oncely.bounded(min(updated_at)) as "oldest!"
        from oncely.dead_letters
        where state in ('waiting', 'requeueing')
        group by consumer"#
    )
    .fetch_all(connection)
    .await
}
