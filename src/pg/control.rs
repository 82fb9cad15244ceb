//! What people have told consumers to do.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;

/// A consumer's pause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pause {
    pub(crate) consumer: String,
    pub(crate) paused_at: DateTime<Utc>,
    /// When it goes on by itself; `None`: when somebody resumes it.
    pub(crate) paused_until: Option<DateTime<Utc>>,
    /// The database's user, and the operating system's in brackets.
    pub(crate) paused_by: String,
    pub(crate) reason: String,
}

/// The pauses that last, by consumer.
pub(crate) async fn pauses(connection: &mut PgConnection) -> Result<Vec<Pause>, sqlx::Error> {
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

/// Pauses a consumer; recorded in the same transaction. Workers obey within a few seconds.
///
/// # Errors
/// `ONC11` where no worker of the consumer has started here, the reason is empty, or the end is in the past.
pub(crate) async fn pause_consumer(
    connection: &mut PgConnection,
    consumer: &str,
    until: Option<DateTime<Utc>>,
    reason: &str,
    user: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query!("select oncely.pause_consumer($1, $2, $3, $4)::text", consumer, until, reason, user)
        .fetch_one(connection)
        .await?;
    Ok(())
}

/// Ends a pause; recorded in the same transaction. Was the consumer paused?
pub(crate) async fn resume_consumer(
    connection: &mut PgConnection,
    consumer: &str,
    reason: Option<&str>,
    user: &str,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(r#"select oncely.resume_consumer($1, $2, $3) as "resumed!""#, consumer, reason, user)
        .fetch_one(connection)
        .await
}
