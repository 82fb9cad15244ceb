//! Runs that may not come back: counted before they begin.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::session::Backend;
use crate::decide::EARLY;
use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, IdentityPart};

/// Counts a run of each message, in a transaction of its own that is committed when this returns. Returns which were counted:
/// those whose key may run, and runs nowhere else; where `lenient`, whatever payload its key came with first. Identities must be distinct.
pub(crate) async fn mark(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    now: DateTime<Utc>,
    backend: Backend,
    lenient: bool,
    suspects: &[(&Identity, Option<Fingerprint>)],
) -> Result<Vec<bool>, sqlx::Error> {
    let tenants: Vec<String> =
        suspects.iter().map(|(identity, _)| identity.tenant.as_str().to_owned()).collect();
    let keys: Vec<String> = suspects.iter().map(|(identity, _)| identity.key.as_str().to_owned()).collect();
    let fingerprints: Vec<Option<Vec<u8>>> =
        suspects.iter().map(|(_, print)| print.map(|print| print.0.to_vec())).collect();
    let mut transaction = super::begin(connection).await?;
    // It must survive this process, not the server: a mark that a crash of PostgreSQL loses would only have been taken back.
    sqlx::query!("set local synchronous_commit = off").execute(&mut *transaction).await?;
    let rows = sqlx::query_file!(
        "src/pg/mark_suspects.sql",
        consumer.as_str(),
        now,
        &tenants,
        &keys,
        &fingerprints as &[Option<Vec<u8>>],
        lenient,
        backend.pid,
        backend.started_at,
        now + EARLY
    )
    .fetch_all(&mut *transaction)
    .await?;
    transaction.commit().await?;
    let position: HashMap<(&str, &str), usize> = suspects
        .iter()
        .enumerate()
        .map(|(index, (identity, _))| ((identity.tenant.as_str(), identity.key.as_str()), index))
        .collect();
    let mut marked = vec![false; suspects.len()];
    for row in rows {
        if let Some(&index) = position.get(&(row.tenant.as_str(), row.key.as_str())) {
            marked[index] = true;
        }
    }
    Ok(marked)
}

/// Takes marks back: the run has ended without a result, and the process lives.
pub(crate) async fn unmark(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    identities: &[Identity],
) -> Result<(), sqlx::Error> {
    let tenants: Vec<String> =
        identities.iter().map(|identity| identity.tenant.as_str().to_owned()).collect();
    let keys: Vec<String> = identities.iter().map(|identity| identity.key.as_str().to_owned()).collect();
    sqlx::query!(
        "update oncely.idempotency_keys as i
         set crash_attempts = i.crash_attempts - 1, marked_pid = null, marked_backend_start = null
         from (
             select m.tenant, m.key
             from rows from (pg_catalog.unnest($2::text[]), pg_catalog.unnest($3::text[])) as k (tenant, key)
             join oncely.idempotency_keys as m on m.tenant = k.tenant and m.consumer = $1 and m.key = k.key
             order by m.tenant, m.key
             for update of m
         ) as k
         where i.tenant = k.tenant and i.consumer = $1 and i.key = k.key
           and i.status = 'IN_PROGRESS' and i.crash_attempts > 0",
        consumer.as_str(),
        &tenants,
        &keys
    )
    .execute(connection)
    .await?;
    Ok(())
}
