//! Crash marks: runs that may crash the process are counted before they begin.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::session::{Backend, plan_anew};
use oncely_core::decide::EARLY_TOLERANCE;
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::{Identity, IdentityPart};

/// A key inserted by another session while the statement ran is only visible to the next one.
const MAX_ROUNDS: usize = 2;

/// Counts a run of each message, in a transaction of its own that is committed when this returns. Returns for each message whether it was
/// counted: if its key may run, and runs nowhere else; with `lenient`, under any payload that its key first came with. Identities must be
/// distinct. Waits for a held key like a claim.
pub async fn mark_suspects(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    now: DateTime<Utc>,
    backend: Backend,
    lenient: bool,
    suspects: &[(&Identity, Option<Fingerprint>)],
) -> sqlx::Result<Vec<bool>> {
    let tenants: Vec<String> =
        suspects.iter().map(|(identity, _)| identity.tenant.as_str().to_owned()).collect();
    let keys: Vec<String> = suspects.iter().map(|(identity, _)| identity.key.as_str().to_owned()).collect();
    let fingerprints: Vec<Option<Vec<u8>>> =
        suspects.iter().map(|(_, print)| print.map(|print| print.0.to_vec())).collect();
    let position: HashMap<(&str, &str), usize> = suspects
        .iter()
        .enumerate()
        .map(|(index, (identity, _))| ((identity.tenant.as_str(), identity.key.as_str()), index))
        .collect();
    let mut transaction = super::begin_to_claim(connection).await?;
    // It must survive a crash of this process, not of the server: a mark lost by a crash of PostgreSQL would only have been removed.
    sqlx::query!("set local synchronous_commit = off").execute(&mut *transaction).await?;
    plan_anew(&mut transaction).await?;
    let mut marked = vec![false; suspects.len()];
    for _ in 0..MAX_ROUNDS {
        let open: Vec<usize> = (0..suspects.len()).filter(|&index| !marked[index]).collect();
        if open.is_empty() {
            break;
        }
        let of = |all: &[String]| -> Vec<String> { open.iter().map(|&index| all[index].clone()).collect() };
        let prints: Vec<_> = open.iter().map(|&index| fingerprints[index].clone()).collect();
        let rows = sqlx::query_file!(
            "src/mark_suspects.sql",
            consumer.as_str(),
            now,
            &of(&tenants),
            &of(&keys),
            &prints as &[Option<Vec<u8>>],
            lenient,
            backend.pid,
            backend.started_at,
            now + EARLY_TOLERANCE
        )
        .fetch_all(&mut *transaction)
        .await?;
        for row in rows {
            if let Some(&index) = position.get(&(row.tenant.as_str(), row.key.as_str())) {
                marked[index] = true;
            }
        }
    }
    transaction.commit().await?;
    Ok(marked)
}

/// Removes marks: the run has ended without a result, and the process is alive. Returns the marks that could not be removed because their
/// keys are held: this does not wait for them.
pub async fn unmark_suspects(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    identities: &[Identity],
) -> sqlx::Result<Vec<Identity>> {
    let tenants: Vec<String> =
        identities.iter().map(|identity| identity.tenant.as_str().to_owned()).collect();
    let keys: Vec<String> = identities.iter().map(|identity| identity.key.as_str().to_owned()).collect();
    let left = sqlx::query_file!("src/unmark_suspects.sql", consumer.as_str(), &tenants, &keys)
        .fetch_all(connection)
        .await?;
    let is_left = |identity: &&Identity| {
        left.iter().any(|row| row.tenant == identity.tenant.as_str() && row.key == identity.key.as_str())
    };
    Ok(identities.iter().filter(is_left).cloned().collect())
}
