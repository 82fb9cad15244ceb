//! The table queries of `oncely status`. Each is an index probe, or counts up to a limit.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;

/// The state of a consumer's keys.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConsumerKeyCounts {
    pub consumer: String,
    /// When a key was last completed, until that key is collected.
    pub completed_at: Option<DateTime<Utc>>,
    /// Number of keys that failed and are tried again, counted up to 10,000.
    pub failing: i64,
}

/// Reads for each consumer the time of its last completion and the number of its failing keys.
pub async fn read_consumer_key_counts(
    connection: &mut PgConnection,
    consumers: &[String],
) -> sqlx::Result<Vec<ConsumerKeyCounts>> {
    sqlx::query_as!(
        ConsumerKeyCounts,
        r#"select c.consumer as "consumer!",
            (
                select oncely.bounded(max(i.completed_at)) from oncely.idempotency_keys as i
                where i.status = 'COMPLETED' and i.consumer = c.consumer
            ) as completed_at,
            (
                select count(*)
                from (
                    select from oncely.idempotency_keys as i
                    where i.status = 'IN_PROGRESS' and i.consumer = c.consumer and i.attempts > 0
                    limit 10000
                ) as f
            ) as "failing!"
        from unnest($1::text[]) as c (consumer)"#,
        consumers
    )
    .fetch_all(connection)
    .await
}

/// A key that failed and is tried again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FailingKey {
    pub consumer: String,
    pub tenant: String,
    pub key: String,
    pub attempts: i32,
    pub created_at: DateTime<Utc>,
    pub last_error: Option<String>,
    /// When it is tried again.
    pub not_before: Option<DateTime<Utc>>,
}

/// Lists each consumer's oldest failing keys, up to `each`.
pub async fn list_failing_keys(
    connection: &mut PgConnection,
    consumers: &[String],
    each: i64,
) -> sqlx::Result<Vec<FailingKey>> {
    sqlx::query_as!(
        FailingKey,
        r#"select f.consumer as "consumer!", f.tenant as "tenant!", f.key as "key!", f.attempts as "attempts!",
            oncely.bounded(f.created_at) as "created_at!", f.last_error, oncely.bounded(f.not_before) as not_before
        from unnest($1::text[]) as c (consumer)
        cross join lateral (
            select i.consumer, i.tenant, i.key, i.attempts, i.created_at, i.last_error, i.not_before
            from oncely.idempotency_keys as i
            where i.status = 'IN_PROGRESS' and i.consumer = c.consumer and i.attempts > 0
            order by i.created_at
            limit $2
        ) as f
        order by f.consumer, f.created_at"#,
        consumers,
        each
    )
    .fetch_all(connection)
    .await
}

/// The stored dead letters of a queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueLetters {
    pub queue: String,
    /// Open letters, which wait for an operator or for the end of a requeue.
    pub waiting: i64,
    /// Those of them with copies in the dead-letter queue: not just arrived, and not stored by a client.
    pub settled: i64,
}

/// Counts open dead letters by queue. `before` counts those older than this time.
pub async fn count_queue_letters(
    connection: &mut PgConnection,
    before: DateTime<Utc>,
) -> sqlx::Result<Vec<QueueLetters>> {
    sqlx::query_as!(
        QueueLetters,
        r#"select queue, count(*) as "waiting!", count(*) filter (where dead_lettered_at < $1 and not from_client) as "settled!"
        from oncely.dead_letters
        where state in ('waiting', 'requeueing')
        group by queue
        order by queue"#,
        before
    )
    .fetch_all(connection)
    .await
}
