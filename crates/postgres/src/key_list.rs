//! Lists keys for operators: page by page along an index, so that a page costs the same in a table of any size.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;

use oncely_core::decide::KeyStatus;

/// A key without its response.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KeyRow {
    pub tenant: String,
    pub consumer: String,
    pub key: String,
    pub status: String,
    pub attempts: i32,
    pub(crate) crash_attempts: i32,
    pub created_at: DateTime<Utc>,
    /// When the outcome became final.
    pub completed_at: Option<DateTime<Utc>>,
    /// When it may be collected, if its claim set an expiry.
    pub(crate) expires_at: Option<DateTime<Utc>>,
    /// When it may be tried again.
    pub(crate) not_before: Option<DateTime<Utc>>,
    pub reason: Option<String>,
    pub(crate) error_code: Option<String>,
    pub last_error: Option<String>,
}

/// A walk through keys along an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyWalk {
    /// A tenant's keys, in the order of consumer and key, after this consumer and key.
    ByIdentity { tenant: String, consumer: Option<String>, after: Option<(String, String)> },
    /// A consumer's keys of one status, newest first: completed and failed ones by their end, those in progress by their start; after this
    /// time, tenant and key.
    ByTime {
        consumer: String,
        status: KeyStatus,
        tenant: Option<String>,
        since: Option<DateTime<Utc>>,
        until: Option<DateTime<Utc>>,
        after: Option<(DateTime<Utc>, String, String)>,
    },
}

/// Lists the next page of a walk over keys.
pub async fn list_keys(
    connection: &mut PgConnection,
    walk: &KeyWalk,
    limit: i64,
) -> sqlx::Result<Vec<KeyRow>> {
    match walk {
        KeyWalk::ByIdentity { tenant, consumer, after } => {
            let (after_consumer, after_key) = after.as_ref().map(|(c, k)| (c.as_str(), k.as_str())).unzip();
            sqlx::query_file_as!(
                KeyRow,
                "src/keys_by_identity.sql",
                tenant,
                consumer.as_deref(),
                after_consumer,
                after_key,
                limit
            )
            .fetch_all(connection)
            .await
        }
        KeyWalk::ByTime { consumer, status, tenant, since, until, after } => {
            let (after_tenant, after_key) = after.as_ref().map(|(_, t, k)| (t.as_str(), k.as_str())).unzip();
            sqlx::query_file_as!(
                KeyRow,
                "src/keys_by_time.sql",
                status.as_str(),
                consumer,
                tenant.as_deref(),
                *since,
                *until,
                after.as_ref().map(|(at, ..)| *at),
                after_tenant,
                after_key,
                limit
            )
            .fetch_all(connection)
            .await
        }
    }
}
