//! Records on their way to Redis.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::consumers::interval;
use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, IdentityPart};

/// Tags on their way to the mirror.
#[derive(Clone, Debug)]
pub(crate) struct MirrorRecord {
    pub(crate) tenant: String,
    pub(crate) id: Uuid,
    pub(crate) content: Mirrored,
    /// No entry may live longer than this.
    pub(crate) expires_at: DateTime<Utc>,
    pub(crate) created_at: DateTime<Utc>,
}

/// What a record says took effect.
#[derive(Clone, Debug)]
pub(crate) enum Mirrored {
    /// The tags of a worker's batch.
    Tags(Vec<u8>),
    /// A key that `oncely.complete` completed: SQL has no key to make a tag with.
    Key(Identity, Option<Fingerprint>),
    /// A row that came past the table's constraints: no tag can be made of it, and it must not keep the others.
    Unreadable,
}

/// Appends one record with the tags of a whole batch, in the caller's transaction.
pub(crate) async fn append_mirror(
    connection: &mut PgConnection,
    tenant: &str,
    consumer: &str,
    tags: &[u8],
    created_at: DateTime<Utc>,
    expires_at: DateTime<Utc>,
) -> Result<u64, sqlx::Error> {
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
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}

/// Takes up to `limit` of the oldest records that no other relay holds; they stay locked until the transaction ends. `ttl`: for how long
/// an entry may live, as this relay has registered it.
pub(crate) async fn take_mirror(
    connection: &mut PgConnection,
    limit: i64,
    ttl: Duration,
) -> Result<Vec<MirrorRecord>, sqlx::Error> {
    let rows =
        sqlx::query_file!("src/pg/take_mirror.sql", limit, interval(ttl)).fetch_all(connection).await?;
    let records = rows.into_iter().map(|row| {
        let content = match (row.tags, row.key) {
            (Some(tags), _) => Mirrored::Tags(tags),
            (None, Some(key)) => key_of(&row.tenant, &row.consumer, &key, row.fingerprint),
            (None, None) => Mirrored::Unreadable,
        };
        let (tenant, id) = (row.tenant, row.id);
        MirrorRecord { tenant, id, content, expires_at: row.expires_at, created_at: row.created_at }
    });
    Ok(records.collect())
}

fn key_of(tenant: &str, consumer: &str, key: &str, fingerprint: Option<Vec<u8>>) -> Mirrored {
    let part = |text: &str| IdentityPart::new(text.as_bytes());
    match (part(tenant), part(consumer), part(key)) {
        (Ok(tenant), Ok(consumer), Ok(key)) => {
            let print = fingerprint.and_then(|bytes| Fingerprint::from_stored(&bytes));
            Mirrored::Key(Identity { tenant, consumer, key }, print)
        }
        _ => Mirrored::Unreadable,
    }
}

/// Deletes exactly these records. Returns how many there were.
pub(crate) async fn delete(
    connection: &mut PgConnection,
    records: &[MirrorRecord],
) -> Result<u64, sqlx::Error> {
    let tenants: Vec<String> = records.iter().map(|record| record.tenant.clone()).collect();
    let ids: Vec<Uuid> = records.iter().map(|record| record.id).collect();
    let gone = sqlx::query_scalar!(r#"select oncely.delete_mirrored($1, $2) as "gone!""#, &tenants, &ids)
        .fetch_one(connection)
        .await?;
    Ok(u64::try_from(gone).unwrap_or(0))
}
