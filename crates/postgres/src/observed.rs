//! Reads the records of an observing consumer in the audit trail.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;

/// Messages with the same observed reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedCount {
    /// `None`: the first message of each key.
    pub reason: Option<String>,
    pub messages: i64,
    pub first_at: DateTime<Utc>,
    pub last_at: DateTime<Utc>,
}

/// A key that came with several payloads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConflictingKey {
    pub tenant: String,
    pub key: String,
    /// Number of messages with another payload than the first.
    pub messages: i64,
}

/// Counts the observed messages since a time, by reason. Reads the trail from there.
pub async fn count_observed(
    connection: &mut PgConnection,
    consumer: &str,
    since: DateTime<Utc>,
) -> sqlx::Result<Vec<ObservedCount>> {
    sqlx::query_as!(
        ObservedCount,
        r#"select reason, count(*) as "messages!", oncely.bounded(min(occurred_at)) as "first_at!",
            oncely.bounded(max(occurred_at)) as "last_at!"
        from oncely.audit
        where consumer = $1 and outcome = 'observed' and occurred_at >= $2
        group by reason
        order by count(*) desc, reason"#,
        consumer,
        since
    )
    .fetch_all(connection)
    .await
}

/// Lists keys that came with several payloads, those with most messages first.
pub async fn list_conflicting_keys(
    connection: &mut PgConnection,
    consumer: &str,
    since: DateTime<Utc>,
    limit: i64,
) -> sqlx::Result<Vec<ConflictingKey>> {
    sqlx::query_as!(
        ConflictingKey,
        r#"select tenant, key, count(*) as "messages!"
        from oncely.audit
        where consumer = $1 and outcome = 'observed' and occurred_at >= $2 and reason = 'key_conflict'
        group by tenant, key
        order by count(*) desc, tenant, key
        limit $3"#,
        consumer,
        since,
        limit
    )
    .fetch_all(connection)
    .await
}
