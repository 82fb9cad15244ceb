//! What `oncely status` asks of the tables. Each answer costs an index probe, or is counted up to a limit.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;

/// A consumer, by its keys.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ConsumerState {
    pub(crate) consumer: String,
    /// When a key was completed last, as long as it is not collected.
    pub(crate) completed_at: Option<DateTime<Utc>>,
    /// Keys that failed and are tried again, counted up to 10,000.
    pub(crate) failing: i64,
}

/// How consumers stand.
pub(crate) async fn consumer_states(
    connection: &mut PgConnection,
    consumers: &[String],
) -> Result<Vec<ConsumerState>, sqlx::Error> {
    sqlx::query_as!(
        ConsumerState,
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
pub(crate) struct FailingKey {
    pub(crate) consumer: String,
    pub(crate) tenant: String,
    pub(crate) key: String,
    pub(crate) attempts: i32,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) last_error: Option<String>,
    /// When it is tried again.
    pub(crate) not_before: Option<DateTime<Utc>>,
}

/// The oldest few of each consumer's failing keys.
pub(crate) async fn failing_keys(
    connection: &mut PgConnection,
    consumers: &[String],
    each: i64,
) -> Result<Vec<FailingKey>, sqlx::Error> {
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

/// The dead letters of a queue, by their rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct QueueLetters {
    pub(crate) queue: String,
    /// Open: they wait for somebody, or for the end of a requeue.
    pub(crate) waiting: i64,
    /// Those of them whose copies the dead-letter queue has: not of this moment, and not stored by a client.
    pub(crate) settled: i64,
}

/// Dead letters that wait, by queue. `settled`: those from before this time.
pub(crate) async fn queue_letters(
    connection: &mut PgConnection,
    settled: DateTime<Utc>,
) -> Result<Vec<QueueLetters>, sqlx::Error> {
    sqlx::query_as!(
        QueueLetters,
        r#"select queue, count(*) as "waiting!", count(*) filter (where dead_lettered_at < $1 and not from_client) as "settled!"
        from oncely.dead_letters
        where state in ('waiting', 'requeueing')
        group by queue
        order by queue"#,
        settled
    )
    .fetch_all(connection)
    .await
}
