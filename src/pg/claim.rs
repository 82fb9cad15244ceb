//! The right to run, taken by inserting the key.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::decide::{KeyRecord, KeyStatus};
use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, IdentityPart};
use crate::reason::Reason;

/// A tenant and a key, as PostgreSQL returns them; the consumer is the statement's.
type TenantKey = (String, String);

/// Keys with what is compared, as arrays for `unnest`.
struct Columns {
    tenants: Vec<String>,
    keys: Vec<String>,
    fingerprints: Vec<Option<Vec<u8>>>,
}

fn columns(claims: &[(&Identity, Option<Fingerprint>)]) -> Columns {
    Columns {
        tenants: claims.iter().map(|(identity, _)| identity.tenant.as_str().to_owned()).collect(),
        keys: claims.iter().map(|(identity, _)| identity.key.as_str().to_owned()).collect(),
        fingerprints: claims.iter().map(|(_, print)| print.map(|print| print.0.to_vec())).collect(),
    }
}

fn positions(claims: &[(&Identity, Option<Fingerprint>)]) -> HashMap<TenantKey, usize> {
    claims
        .iter()
        .enumerate()
        .map(|(index, (identity, _))| {
            ((identity.tenant.as_str().to_owned(), identity.key.as_str().to_owned()), index)
        })
        .collect()
}

/// Claims the keys that nobody has; returns the positions of those won. Identities must be distinct. Waits for workers
/// that hold one of the keys in an open transaction, up to `lock_timeout`.
pub(crate) async fn claim(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    now: DateTime<Utc>,
    claims: &[(&Identity, Option<Fingerprint>)],
) -> Result<Vec<usize>, sqlx::Error> {
    let Columns { tenants, keys, fingerprints } = columns(claims);
    let rows = sqlx::query_file!(
        "src/pg/claim.sql",
        consumer.as_str(),
        now,
        &tenants,
        &keys,
        &fingerprints as &[Option<Vec<u8>>]
    )
    .fetch_all(connection)
    .await?;
    if rows.len() == claims.len() {
        // Nearly every batch: all won, nothing to match.
        return Ok((0..claims.len()).collect());
    }
    let position = positions(claims);
    Ok(rows.into_iter().filter_map(|row| position.get(&(row.tenant, row.key)).copied()).collect())
}

/// Claims keys whose earlier runs failed; returns the positions of those won and which run it is.
pub(crate) async fn retake(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    now: DateTime<Utc>,
    claims: &[(&Identity, Option<Fingerprint>)],
) -> Result<Vec<(usize, u32)>, sqlx::Error> {
    let Columns { tenants, keys, fingerprints } = columns(claims);
    let position = positions(claims);
    let rows = sqlx::query_file!(
        "src/pg/retake.sql",
        consumer.as_str(),
        now,
        &tenants,
        &keys,
        &fingerprints as &[Option<Vec<u8>>]
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .filter_map(|row| {
            let index = position.get(&(row.tenant, row.key)).copied()?;
            Some((index, u32::try_from(row.attempts).unwrap_or(u32::MAX)))
        })
        .collect())
}

/// What is known of the keys, by position; `None` where nothing is.
pub(crate) async fn look_up(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    identities: &[&Identity],
) -> Result<Vec<Option<KeyRecord>>, sqlx::Error> {
    let claims: Vec<_> = identities.iter().map(|identity| (*identity, None)).collect();
    let Columns { tenants, keys, .. } = columns(&claims);
    let position = positions(&claims);
    let rows = sqlx::query_file!("src/pg/look_up.sql", consumer.as_str(), &tenants, &keys)
        .fetch_all(connection)
        .await?;
    let mut records = vec![None; identities.len()];
    for row in rows {
        let status = KeyStatus::from_column(&row.status)
            .ok_or_else(|| sqlx::Error::Decode(format!("unknown status {:?}", row.status).into()))?;
        let fingerprint = row.fingerprint.and_then(|bytes| bytes.try_into().ok()).map(Fingerprint);
        if let Some(&index) = position.get(&(row.tenant, row.key)) {
            records[index] = Some(KeyRecord {
                status,
                fingerprint,
                attempts: u32::try_from(row.attempts).unwrap_or(u32::MAX),
                crash_attempts: u32::try_from(row.crash_attempts).unwrap_or(u32::MAX),
                reason: row.reason.as_deref().and_then(Reason::from_code),
                last_error: row.last_error,
                response: row.response,
            });
        }
    }
    Ok(records)
}
