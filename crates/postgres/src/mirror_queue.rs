//! The queue of records for Redis.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::consumers::to_interval;
use super::unit::{Unit, fetch_from_unit};
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::{Identity, IdentityPart};

/// Tags to be written to the mirror.
#[derive(Clone, Debug)]
pub struct MirrorRecord {
    pub(crate) tenant: String,
    pub id: Uuid,
    pub content: MirrorContent,
    /// No entry may live beyond this time.
    pub expires_at: DateTime<Utc>,
    pub created_at: DateTime<Utc>,
}

/// The keys that a record marks as completed.
#[derive(Clone, Debug)]
pub enum MirrorContent {
    /// The tags of a worker's batch.
    Tags(Vec<u8>),
    /// A key completed by `oncely.complete`: SQL has no key to compute a tag with.
    Key(Identity, Option<Fingerprint>),
    /// A row that bypassed the table's constraints: it has no tag, and must not block the others.
    Unreadable,
}

/// Maximum number of bytes of tags in one record (`mirror_queue_tags`): 4,096 keys.
pub const MAX_RECORD_TAG_BYTES: usize = 64 << 10;

/// Appends the tags of a batch, in the caller's transaction: one record, or several of at most [`MAX_RECORD_TAG_BYTES`]. Returns the number
/// of records.
pub async fn append_mirror(
    connection: &mut PgConnection,
    tenant: &str,
    consumer: &str,
    tags: &[u8],
    created_at: DateTime<Utc>,
    expires_at: DateTime<Utc>,
) -> sqlx::Result<u64> {
    let mut written = 0;
    for tags in tags.chunks(MAX_RECORD_TAG_BYTES) {
        let result = sqlx::query!(
            "insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags)
             values ($1, $2, 'mirror', $3, $4, $5, $6)",
            tenant,
            Uuid::now_v7(),
            created_at,
            expires_at,
            consumer,
            tags
        )
        .execute(&mut *connection)
        .await?;
        written += result.rows_affected();
    }
    Ok(written)
}

/// Maximum number of bytes of tags in one batch, unless it is one record: 65,536 keys.
const MAX_BATCH_TAG_BYTES: i64 = 1 << 20;

/// Takes up to `limit` of the oldest records that no other relay holds; they stay locked until the transaction ends. `ttl` is the maximum
/// lifetime of an entry that this relay has registered.
pub async fn take_mirror(
    connection: &mut PgConnection,
    unit: &Unit,
    limit: i64,
    ttl: Duration,
) -> sqlx::Result<Vec<MirrorRecord>> {
    let rows = fetch_from_unit!(
        TakenRecord,
        "src/take_mirror.sql",
        unit,
        connection,
        limit,
        to_interval(ttl),
        MAX_BATCH_TAG_BYTES
    )?;
    let records = rows.into_iter().map(|row| {
        let content = match (row.tags, row.key) {
            (Some(tags), _) => MirrorContent::Tags(tags),
            (None, Some(key)) => parse_key(&row.tenant, &row.consumer, &key, row.fingerprint),
            (None, None) => MirrorContent::Unreadable,
        };
        let (tenant, id) = (row.tenant, row.id);
        MirrorRecord { tenant, id, content, expires_at: row.expires_at, created_at: row.created_at }
    });
    Ok(records.collect())
}

#[derive(sqlx::FromRow)]
struct TakenRecord {
    tenant: String,
    id: Uuid,
    tags: Option<Vec<u8>>,
    consumer: String,
    key: Option<String>,
    fingerprint: Option<Vec<u8>>,
    expires_at: DateTime<Utc>,
    created_at: DateTime<Utc>,
}

/// Parses the key of a record of a single message; leaves out a fingerprint of the wrong length.
fn parse_key(tenant: &str, consumer: &str, key: &str, fingerprint: Option<Vec<u8>>) -> MirrorContent {
    let part = |text: &str| IdentityPart::new(text.as_bytes());
    match (part(tenant), part(consumer), part(key)) {
        (Ok(tenant), Ok(consumer), Ok(key)) => {
            let print = fingerprint.and_then(|bytes| Fingerprint::from_stored(&bytes));
            MirrorContent::Key(Identity { tenant, consumer, key }, print)
        }
        _ => MirrorContent::Unreadable,
    }
}

/// Deletes exactly these records. Returns the number deleted.
pub async fn delete(connection: &mut PgConnection, records: &[MirrorRecord]) -> sqlx::Result<u64> {
    let tenants: Vec<String> = records.iter().map(|record| record.tenant.clone()).collect();
    let ids: Vec<Uuid> = records.iter().map(|record| record.id).collect();
    let deleted = sqlx::query_scalar!(r#"select oncely.delete_mirrored($1, $2) as "gone!""#, &tenants, &ids)
        .fetch_one(connection)
        .await?;
    Ok(u64::try_from(deleted).unwrap_or(0))
}
