//! Completed keys, for a mirror that may lack them.

use chrono::{DateTime, Utc};
use sqlx::{Connection as _, PgConnection};

use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, IdentityPart};

/// A key in the order in which they are said again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyPlace {
    pub(crate) completed_at: DateTime<Utc>,
    /// `None`: all that were completed at that time and before.
    pub(crate) name: Option<(String, String)>,
}

/// Has mirror records written once more for up to `most` completed keys of a consumer, the newest first, from a place back to `since`.
/// Returns how many records, and the place that it ended at; `None` where there was no key any more. Harmless if it is repeated.
///
/// # Errors
/// `42501` where the login is no operator, `ONC11` where no worker of the consumer has started here.
pub(crate) async fn mirror_again(
    connection: &mut PgConnection,
    consumer: &str,
    since: DateTime<Utc>,
    place: &KeyPlace,
    most: i32,
) -> Result<(i64, Option<KeyPlace>), sqlx::Error> {
    let (tenant, key) = place.name.as_ref().map(|(tenant, key)| (tenant.as_str(), key.as_str())).unzip();
    let row = sqlx::query!(
        r#"select place_time, place_tenant, place_key, records as "records!"
        from oncely.mirror_again($1, $2, $3, $4, $5, $6)"#,
        consumer,
        since,
        most,
        place.completed_at,
        tenant,
        key
    )
    .fetch_one(connection)
    .await?;
    let next = row
        .place_time
        .map(|completed_at| KeyPlace { completed_at, name: row.place_tenant.zip(row.place_key) });
    Ok((row.records, next))
}

/// A completed key that the mirror should have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MirroredKey {
    pub(crate) identity: Identity,
    pub(crate) fingerprint: Option<Fingerprint>,
}

/// How many spans a sample comes from: the newest keys of each.
const SPANS: i32 = 20;

/// Completed keys of a consumer whose mirror record has been relayed, `each` of each twentieth of the time from `since` to `until`. Those
/// whose life ends before `alive` are left out: the relay writes none of them.
pub(crate) async fn mirrored_sample(
    connection: &mut PgConnection,
    consumer: &str,
    (since, until): (DateTime<Utc>, DateTime<Utc>),
    alive: DateTime<Utc>,
    each: i64,
) -> Result<Vec<MirroredKey>, sqlx::Error> {
    // Of one moment: a key whose record is not there any more has been mirrored.
    let mut transaction = connection.begin_with("begin isolation level repeatable read").await?;
    let rows = sqlx::query_file!("src/pg/mirrored_sample.sql", consumer, since, until, SPANS, alive, each)
        .fetch_all(&mut *transaction)
        .await?;
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
