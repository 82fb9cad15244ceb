//! What a consumer that only observes has noted in the trail.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;

/// Messages that were alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedCount {
    /// `None`: the first with their keys.
    pub(crate) reason: Option<String>,
    pub(crate) messages: i64,
    pub(crate) first_at: DateTime<Utc>,
    pub(crate) last_at: DateTime<Utc>,
}

/// A key that came with several payloads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ConflictingKey {
    pub(crate) tenant: String,
    pub(crate) key: String,
    /// Messages with another payload than the first.
    pub(crate) messages: i64,
}

/// Counts what was noted from a time on, by what it was. Reads the trail from there.
pub(crate) async fn observed_counts(
    connection: &mut PgConnection,
    consumer: &str,
    since: DateTime<Utc>,
) -> Result<Vec<ObservedCount>, sqlx::Error> {
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

/// Keys that came with several payloads, those with most messages first.
pub(crate) async fn conflicting_keys(
    connection: &mut PgConnection,
    consumer: &str,
    since: DateTime<Utc>,
    limit: i64,
) -> Result<Vec<ConflictingKey>, sqlx::Error> {
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
