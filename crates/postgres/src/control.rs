//! Pauses of consumers.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;

/// A consumer's pause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    pub consumer: String,
    pub paused_at: DateTime<Utc>,
    /// When the consumer resumes automatically; `None`: when an operator resumes it.
    pub paused_until: Option<DateTime<Utc>>,
    /// The database user, and the operating system's user in brackets.
    pub paused_by: String,
    pub reason: String,
}

/// Lists the current pauses, by consumer.
pub async fn list_pauses(connection: &mut PgConnection) -> sqlx::Result<Vec<Pause>> {
    sqlx::query_as!(
        Pause,
        r#"select consumer, oncely.bounded(paused_at) as "paused_at!", oncely.bounded(paused_until) as paused_until,
            paused_by, reason
        from oncely.controls
        where paused_until is null or paused_until > clock_timestamp()
        order by consumer"#
    )
    .fetch_all(connection)
    .await
}

/// Pauses a consumer; recorded in the same transaction. Workers follow within a few seconds.
///
/// # Errors
/// If no worker of the consumer has started here, the reason is empty, or the end is in the past (`ONC11`).
pub async fn pause_consumer(
    connection: &mut PgConnection,
    consumer: &str,
    until: Option<DateTime<Utc>>,
    reason: &str,
    user: &str,
) -> sqlx::Result<()> {
    sqlx::query!("select oncely.pause_consumer($1, $2, $3, $4)::text", consumer, until, reason, user)
        .fetch_one(connection)
        .await?;
    Ok(())
}

/// Ends a pause; recorded in the same transaction. Returns whether the consumer was paused.
pub async fn resume_consumer(
    connection: &mut PgConnection,
    consumer: &str,
    reason: Option<&str>,
    user: &str,
) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"select oncely.resume_consumer($1, $2, $3) as "resumed!""#, consumer, reason, user)
        .fetch_one(connection)
        .await
}
