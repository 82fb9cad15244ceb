//! The queue of records for Redis.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::consumers::interval;
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

/// Most bytes of tags in one record (`mirror_queue_tags`): 4,096 keys.
pub const RECORD_BYTES: usize = 64 << 10;

/// Appends the tags of a batch, in the caller's transaction: one record, or several of at most [`RECORD_BYTES`]. Returns the number of
/// records.
pub async fn append_mirror(
    connection: &mut PgConnection,
    tenant: &str,
    consumer: &str,
    tags: &[u8],
    created_at: DateTime<Utc>,
    expires_at: DateTime<Utc>,
) -> sqlx::Result<u64> {
    let mut written = 0;
    for tags in tags.chunks(RECORD_BYTES) {
        let done = sqlx::query!(
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
        written += done.rows_affected();
    }
    Ok(written)
}

/// Most bytes of tags in one batch, unless it is one record: 65,536 keys.
const TAG_BYTES: i64 = 1 << 20;

/// Takes up to `limit` of the oldest records that no other relay holds; they stay locked until the transaction ends. `ttl` is the maximum
/// lifetime of an entry that this relay has registered.
pub async fn take_mirror(
    connection: &mut PgConnection,
    limit: i64,
    ttl: Duration,
) -> sqlx::Result<Vec<MirrorRecord>> {
    let rows = sqlx::query_file!("src/take_mirror.sql", limit, interval(ttl), TAG_BYTES)
        .fetch_all(connection)
        .await?;
    let records = rows.into_iter().map(|row| {
        let content = match (row.tags, row.key) {
            (Some(tags), _) => MirrorContent::Tags(tags),
            (None, Some(key)) => key_of(&row.tenant, &row.consumer, &key, row.fingerprint),
            (None, None) => MirrorContent::Unreadable,
        };
        let (tenant, id) = (row.tenant, row.id);
        MirrorRecord { tenant, id, content, expires_at: row.expires_at, created_at: row.created_at }
    });
    Ok(records.collect())
}

fn key_of(tenant: &str, consumer: &str, key: &str, fingerprint: Option<Vec<u8>>) -> MirrorContent {
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
    let gone = sqlx::query_scalar!(r#"select oncely.delete_mirrored($1, $2) as "gone!""#, &tenants, &ids)
        .fetch_one(connection)
        .await?;
    Ok(u64::try_from(gone).unwrap_or(0))
}
