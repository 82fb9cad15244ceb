//! Queues completed keys again for a mirror that may lack them.

use chrono::{DateTime, Utc};
use sqlx::{Connection as _, PgConnection};

use super::unit::{fetch_from_unit, list_units};
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::{Identity, IdentityPart};

/// A position in the order in which keys are queued again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPosition {
    pub completed_at: DateTime<Utc>,
    /// `None`: all keys completed at that time and before.
    pub name: Option<(String, String)>,
}

/// Writes mirror records again for up to `limit` completed keys of a consumer, newest first, from a position back to `since`. Returns the
/// number of records and the position where it ended; `None` if no key was left. Idempotent.
///
/// # Errors
/// If the login is not an operator (`42501`), or no worker of the consumer has started here (`ONC11`).
pub async fn queue_mirror_again(
    connection: &mut PgConnection,
    consumer: &str,
    since: DateTime<Utc>,
    position: &KeyPosition,
    limit: i32,
) -> sqlx::Result<(i64, Option<KeyPosition>)> {
    let (tenant, key) = position.name.as_ref().map(|(tenant, key)| (tenant.as_str(), key.as_str())).unzip();
    let row = sqlx::query!(
        r#"select place_time, place_tenant, place_key, records as "records!"
        from oncely.mirror_again($1, $2, $3, $4, $5, $6)"#,
        consumer,
        since,
        limit,
        position.completed_at,
        tenant,
        key
    )
    .fetch_one(connection)
    .await?;
    let next = row
        .place_time
        .map(|completed_at| KeyPosition { completed_at, name: row.place_tenant.zip(row.place_key) });
    Ok((row.records, next))
}

/// A completed key that the mirror should have.
#[derive(Clone, Debug, PartialEq)]
pub struct MirroredKey {
    pub identity: Identity,
    pub fingerprint: Option<Fingerprint>,
}

/// Number of spans of a sample: the newest keys of each are taken.
const SAMPLED_SPANS: i32 = 20;

#[derive(sqlx::FromRow)]
struct SampledKey {
    tenant: String,
    key: String,
    fingerprint: Option<Vec<u8>>,
}

/// Samples completed keys of a consumer with a relayed mirror record: `each` from every twentieth of the time from `since` to `until`. Keys
/// that expire before `alive` are left out: the relay writes none of them.
pub async fn sample_mirrored_keys(
    connection: &mut PgConnection,
    consumer: &str,
    (since, until): (DateTime<Utc>, DateTime<Utc>),
    alive: DateTime<Utc>,
    each: i64,
) -> sqlx::Result<Vec<MirroredKey>> {
    // In one snapshot: a key without its record has been mirrored.
    let mut transaction = connection.begin_with("begin isolation level repeatable read").await?;
    let mut rows = Vec::new();
    for unit in list_units(&mut transaction).await? {
        rows.extend(fetch_from_unit!(
            SampledKey,
            "src/mirrored_sample.sql",
            unit,
            &mut *transaction,
            consumer,
            since,
            until,
            SAMPLED_SPANS,
            alive,
            each
        )?);
    }
    transaction.commit().await?;
    let part = |text: &str| IdentityPart::new(text.as_bytes()).ok();
    let keys = rows.into_iter().filter_map(|row| {
        let identity =
            Identity { tenant: part(&row.tenant)?, consumer: part(consumer)?, key: part(&row.key)? };
        let fingerprint = row.fingerprint.and_then(|bytes| Fingerprint::from_stored(&bytes));
        Some(MirroredKey { identity, fingerprint })
    });
    Ok(keys.collect())
}
