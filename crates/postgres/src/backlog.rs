//! The gauges of a relay: backlogs and the state of the tables. Each query is an index probe, or counts up to a limit.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// Backlogs at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Backlog {
    pub mirror_records: i64,
    pub oldest_mirror_record: Option<DateTime<Utc>>,
    pub due_events: i64,
    pub oldest_due_event: Option<DateTime<Utc>>,
    pub parked_events: i64,
    /// Number of tenants with open dead letters that are not stored.
    pub over_quota: i64,
    /// PostgreSQL's estimate.
    pub keys: i64,
    pub keys_in_progress: i64,
    pub keys_failed: i64,
    /// The start of the last week that has an audit partition.
    pub last_partition: Option<DateTime<Utc>>,
    /// The start of the oldest transaction that holds back vacuum, as far as the login may see other users' (`pg_read_all_stats`).
    pub oldest_transaction: Option<DateTime<Utc>>,
}

/// Reads the current backlogs, by the database's clock.
pub async fn read_backlog(connection: &mut PgConnection, now: DateTime<Utc>) -> sqlx::Result<Backlog> {
    sqlx::query_file_as!(Backlog, "src/backlog.sql", now).fetch_one(connection).await
}

/// The dead letters of a consumer that wait for an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingLetters {
    pub consumer: String,
    pub waiting: i64,
    pub oldest: DateTime<Utc>,
}

/// Counts the waiting dead letters with this reason, by consumer.
pub async fn count_waiting_letters_with_reason(
    connection: &mut PgConnection,
    reason: &str,
) -> sqlx::Result<Vec<WaitingLetters>> {
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

/// Counts the open dead letters, by consumer.
pub async fn count_waiting_letters(connection: &mut PgConnection) -> sqlx::Result<Vec<WaitingLetters>> {
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
