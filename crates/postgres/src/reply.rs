//! Replies: responses to be sent to the requester.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use oncely_core::identity::{Identity, IdentityPart};

/// A reply to a message; its response is stored with its key.
#[derive(Clone, Debug)]
pub struct Reply<'a> {
    pub identity: &'a Identity,
    /// Its `message_id`: equal for equal requests.
    pub message_id: String,
    pub reply_to: &'a str,
    pub correlation_id: Option<&'a str>,
    pub headers: Option<Value>,
}

/// Writes replies as events, in the caller's transaction. Returns their number.
pub async fn write_replies(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    now: DateTime<Utc>,
    replies: &[Reply<'_>],
) -> sqlx::Result<u64> {
    let tenants: Vec<String> = replies.iter().map(|r| r.identity.tenant.as_str().to_owned()).collect();
    let keys: Vec<String> = replies.iter().map(|r| r.identity.key.as_str().to_owned()).collect();
    let ids: Vec<Uuid> = replies.iter().map(|_| Uuid::now_v7()).collect();
    let queues: Vec<String> = replies.iter().map(|r| r.reply_to.to_owned()).collect();
    let message_ids: Vec<String> = replies.iter().map(|r| r.message_id.clone()).collect();
    let correlations: Vec<Option<String>> =
        replies.iter().map(|r| r.correlation_id.map(str::to_owned)).collect();
    let headers: Vec<Option<Value>> = replies.iter().map(|r| r.headers.clone()).collect();
    let row = sqlx::query_file!(
        "src/reply.sql",
        consumer.as_str(),
        now,
        &tenants,
        &keys,
        &ids,
        &queues,
        &message_ids,
        &correlations as &[Option<String>],
        &headers as &[Option<Value>]
    )
    .fetch_one(connection)
    .await?;
    Ok(u64::try_from(row.written).unwrap_or(0))
}
