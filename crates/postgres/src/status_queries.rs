//! The table queries of `oncely status`. Each is an index probe, or counts up to a limit.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;

use super::unit::{fetch_from_unit, list_units};

/// The state of a consumer's keys.
#[derive(Clone, Debug, PartialEq, Serialize, sqlx::FromRow)]
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
    let mut counts: Vec<_> = consumers
        .iter()
        .map(|consumer| ConsumerKeyCounts { consumer: consumer.clone(), completed_at: None, failing: 0 })
        .collect();
    for unit in list_units(connection).await? {
        let of_unit =
            fetch_from_unit!(ConsumerKeyCounts, "src/consumer_keys.sql", unit, &mut *connection, consumers)?;
        for (sum, more) in counts.iter_mut().zip(of_unit) {
            sum.completed_at = sum.completed_at.max(more.completed_at);
            sum.failing += more.failing;
        }
    }
    Ok(counts)
}

/// A key that failed and is tried again.
#[derive(Clone, Debug, PartialEq, Serialize, sqlx::FromRow)]
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
    let mut failing = Vec::new();
    for unit in list_units(connection).await? {
        failing.extend(fetch_from_unit!(
            FailingKey,
            "src/failing_keys.sql",
            unit,
            &mut *connection,
            consumers,
            each
        )?);
    }
    failing.sort_by(|a, b| (&a.consumer, a.created_at).cmp(&(&b.consumer, b.created_at)));
    let mut counts = HashMap::new();
    failing.retain(|key| {
        let count = counts.entry(key.consumer.clone()).or_insert(0);
        *count += 1;
        *count <= each
    });
    Ok(failing)
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
