//! Keys as operators list them: page by page along an index, so that a page costs the same in a table of any size.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;

use crate::decide::KeyStatus;

/// A key without what its handler answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct KeyRow {
    pub(crate) tenant: String,
    pub(crate) consumer: String,
    pub(crate) key: String,
    pub(crate) status: String,
    pub(crate) attempts: i32,
    pub(crate) crash_attempts: i32,
    pub(crate) created_at: DateTime<Utc>,
    /// When the outcome became final.
    pub(crate) completed_at: Option<DateTime<Utc>>,
    /// When it may be collected, where its claim said so.
    pub(crate) expires_at: Option<DateTime<Utc>>,
    /// When it may be tried again.
    pub(crate) not_before: Option<DateTime<Utc>>,
    pub(crate) reason: Option<String>,
    pub(crate) error_code: Option<String>,
    pub(crate) last_error: Option<String>,
}

/// A walk through keys that an index serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyWalk {
    /// A tenant's, in the order of consumer and key; after this consumer and key.
    ByIdentity { tenant: String, consumer: Option<String>, after: Option<(String, String)> },
    /// A consumer's of one status, the newest first: by the end of completed and failed ones, by the beginning of those in progress; after
    /// the one of this time, tenant and key.
    ByTime {
        consumer: String,
        status: KeyStatus,
        tenant: Option<String>,
        since: Option<DateTime<Utc>>,
        until: Option<DateTime<Utc>>,
        after: Option<(DateTime<Utc>, String, String)>,
    },
}

/// A page of keys.
pub(crate) async fn keys(
    connection: &mut PgConnection,
    walk: &KeyWalk,
    limit: i64,
) -> Result<Vec<KeyRow>, sqlx::Error> {
    match walk {
        KeyWalk::ByIdentity { tenant, consumer, after } => {
            let (after_consumer, after_key) = after.as_ref().map(|(c, k)| (c.as_str(), k.as_str())).unzip();
            sqlx::query_file_as!(
                KeyRow,
                "src/pg/keys_by_identity.sql",
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
                "src/pg/keys_by_time.sql",
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
