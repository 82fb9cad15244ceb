//! Claims the right to run by inserting the key.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::session::{plan_anew, plan_as_usual};
use super::tenant_groups::group_by_placement;
use oncely_core::decide::{KeyRecord, KeyStatus};
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::{Identity, IdentityPart};
use oncely_core::reason::Reason;

/// Keys and fingerprints, as arrays for `unnest`.
struct Columns<'a> {
    tenants: Vec<&'a str>,
    keys: Vec<&'a str>,
    fingerprints: Vec<Option<&'a [u8]>>,
}

/// Converts claims to arrays in the order of their keys: the statements sort, too, but sorted input costs them next to nothing.
fn to_columns<'a>(claims: impl IntoIterator<Item = &'a (&'a Identity, Option<Fingerprint>)>) -> Columns<'a> {
    let mut sorted: Vec<_> = claims.into_iter().collect();
    // Rust compares text byte for byte, as COLLATE "C" does.
    sorted.sort_unstable_by_key(|(identity, _)| (identity.tenant.as_str(), identity.key.as_str()));
    Columns {
        tenants: sorted.iter().map(|(identity, _)| identity.tenant.as_str()).collect(),
        keys: sorted.iter().map(|(identity, _)| identity.key.as_str()).collect(),
        fingerprints: sorted.iter().map(|(_, print)| print.as_ref().map(|print| &print.0[..])).collect(),
    }
}

/// Indexes the position of each claim by tenant and key; the consumer is the statement's.
fn index_positions<'a>(
    claims: &'a [(&'a Identity, Option<Fingerprint>)],
) -> HashMap<(&'a str, &'a str), usize> {
    claims
        .iter()
        .enumerate()
        .map(|(index, (identity, _))| ((identity.tenant.as_str(), identity.key.as_str()), index))
        .collect()
}

/// Claims all of these keys or none; after a failure the transaction can't be continued. Identities must be distinct. Waits for workers
/// that hold one of the keys in an open transaction, for as long as [`begin`](super::begin) allows.
///
/// # Errors
/// If the statement fails. A key that another process holds is not an error, but [`FreshClaim::Taken`].
pub async fn claim_fresh(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    now: DateTime<Utc>,
    claims: &[(&Identity, Option<Fingerprint>)],
) -> sqlx::Result<FreshClaim> {
    let Columns { tenants, keys, fingerprints } = to_columns(claims);
    let inserted = sqlx::query_file!(
        "src/claim_fresh.sql",
        consumer.as_str(),
        now,
        &tenants as &[&str],
        &keys as &[&str],
        &fingerprints as &[Option<&[u8]>]
    )
    .execute(connection)
    .await;
    match inserted {
        Ok(inserted) if usize::try_from(inserted.rows_affected()) == Ok(claims.len()) => Ok(FreshClaim::Won),
        Ok(_) => Ok(FreshClaim::Taken),
        // No other unique index is involved, under any name that a cluster gives to its part of the table.
        Err(error) if may_be_taken(&error) => Ok(FreshClaim::Taken),
        Err(error) => Err(error),
    }
}

/// Returns whether the wait for a lock timed out (lock_not_available).
pub fn is_locked(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|error| error.code()).as_deref() == Some("55P03")
}

/// Returns whether a key of an all-or-nothing claim is taken. A unique constraint of the handler is something else; a cluster's part of
/// Oncely's table has a number after the name, or no name is given.
pub fn is_taken(error: &sqlx::Error) -> bool {
    let of_keys = |name: &str| name.starts_with("idempotency_keys_pkey");
    is_unique_violation(error)
        && error.as_database_error().is_some_and(|error| error.constraint().is_none_or(of_keys))
}

/// Returns whether a statement was issued in a transaction that an earlier error had aborted (in_failed_sql_transaction).
pub fn is_aborted(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|error| error.code()).as_deref() == Some("25P02")
}

/// Returns whether [`leave_request`](super::leave_request) failed because its role is missing: the transaction that stored it has ended
/// (undefined_object in a session without that setting, else invalid_parameter_value).
pub fn is_role_missing(error: &sqlx::Error) -> bool {
    matches!(error.as_database_error().and_then(|error| error.code()).as_deref(), Some("22023" | "42704"))
}

fn is_unique_violation(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.code().as_deref() == Some("23505"))
}

/// Returns whether an error of the statement that claims alone may say that a key is taken: unique_violation, or internal_error, as which
/// a node of Citus reports each error of the node that it passes rows on to. The keys are claimed again by `claim.sql` then, which meets
/// any other error again.
fn may_be_taken(error: &sqlx::Error) -> bool {
    is_unique_violation(error)
        || error.as_database_error().is_some_and(|error| error.code().as_deref() == Some("XX000"))
}

/// The result of an all-or-nothing claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreshClaim {
    /// All keys are claimed.
    Won,
    /// A key is taken: the transaction can't be continued.
    Taken,
}

/// Claims the free keys among these; returns the positions of those won. Identities must be distinct. Waits for workers that hold one of
/// the keys in an open transaction, for as long as [`begin`](super::begin) allows.
pub async fn claim(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    now: DateTime<Utc>,
    claims: &[(&Identity, Option<Fingerprint>)],
) -> sqlx::Result<Vec<usize>> {
    let Columns { tenants, keys, fingerprints } = to_columns(claims);
    let rows = sqlx::query_file!(
        "src/claim.sql",
        consumer.as_str(),
        now,
        &tenants as &[&str],
        &keys as &[&str],
        &fingerprints as &[Option<&[u8]>]
    )
    .fetch_all(connection)
    .await?;
    if rows.len() == claims.len() {
        // Nearly every batch: all won, nothing to match.
        return Ok((0..claims.len()).collect());
    }
    let position = index_positions(claims);
    Ok(rows
        .into_iter()
        .filter_map(|row| position.get(&(row.tenant.as_str(), row.key.as_str())).copied())
        .collect())
}

/// Claims keys with failed runs, unless they have to wait until after `due`; returns the positions of those won and the number of the run.
/// Planned at each execution: after an outage there are many such keys.
pub async fn retake(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    now: DateTime<Utc>,
    due: DateTime<Utc>,
    claims: &[(&Identity, Option<Fingerprint>)],
) -> sqlx::Result<Vec<(usize, u32)>> {
    let position = index_positions(claims);
    plan_anew(connection).await?;
    let mut won = Vec::new();
    for group in group_by_placement(connection, claims, |(identity, _)| identity.tenant.as_str()).await? {
        let Columns { tenants, keys, fingerprints } = to_columns(group);
        let rows = sqlx::query_file!(
            "src/retake.sql",
            consumer.as_str(),
            now,
            &tenants as &[&str],
            &keys as &[&str],
            &fingerprints as &[Option<&[u8]>],
            due
        )
        .fetch_all(&mut *connection)
        .await?;
        won.extend(rows.into_iter().filter_map(|row| {
            let index = position.get(&(row.tenant.as_str(), row.key.as_str())).copied()?;
            Some((index, u32::try_from(row.attempts).unwrap_or(u32::MAX)))
        }));
    }
    plan_as_usual(connection).await?;
    Ok(won)
}

/// Reads the stored records of the keys, by position; `None` for an unknown key.
pub async fn look_up(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    identities: &[&Identity],
) -> sqlx::Result<Vec<Option<KeyRecord>>> {
    let claims: Vec<_> = identities.iter().map(|identity| (*identity, None)).collect();
    let Columns { tenants, keys, .. } = to_columns(&claims);
    let position = index_positions(&claims);
    let rows = sqlx::query_file!("src/look_up.sql", consumer.as_str(), &tenants as &[&str], &keys as &[&str])
        .fetch_all(connection)
        .await?;
    let mut records = vec![None; identities.len()];
    for row in rows {
        let status = KeyStatus::from_column(&row.status)
            .ok_or_else(|| sqlx::Error::Decode(format!("unknown status {:?}", row.status).into()))?;
        let fingerprint = row.fingerprint.and_then(|bytes| Fingerprint::from_stored(&bytes));
        if let Some(&index) = position.get(&(row.tenant.as_str(), row.key.as_str())) {
            records[index] = Some(KeyRecord {
                status,
                fingerprint,
                attempts: u32::try_from(row.attempts).unwrap_or(u32::MAX),
                crash_attempts: u32::try_from(row.crash_attempts).unwrap_or(u32::MAX),
                reason: row.reason.as_deref().and_then(Reason::from_code),
                last_error: row.last_error,
                error_code: row.error_code,
                not_before: row.not_before,
                is_running: row.is_running.unwrap_or(false),
                is_leased: row.is_leased,
            });
        }
    }
    Ok(records)
}
