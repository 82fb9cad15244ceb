//! Crash marks: runs that may crash the process are counted before they begin.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::session::{Backend, plan_anew};
use super::tenant_groups::group_by_placement;
use oncely_core::decide::EARLY_TOLERANCE;
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::{Identity, IdentityPart};

/// Counts a run of each message, in a transaction of its own that is committed when this returns. Returns for each message whether it was
/// counted: if its key may run, and runs nowhere else; with `lenient`, under any payload that its key first came with. Identities must be
/// distinct. Waits for a held key like a claim.
pub async fn mark_suspects(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    now: DateTime<Utc>,
    backend: Backend,
    lenient: bool,
    suspects: &[Suspect<'_>],
) -> sqlx::Result<Vec<bool>> {
    let mut transaction = super::begin_to_claim(connection).await?;
    // It must survive a crash of this process, not of the server: a mark lost by a crash of PostgreSQL would only have been removed.
    sqlx::query!("set local synchronous_commit = off").execute(&mut *transaction).await?;
    plan_anew(&mut transaction).await?;
    let mut marked = MarkedKeys::new();
    for mut group in
        group_by_placement(&mut transaction, suspects, |(identity, _)| identity.tenant.as_str()).await?
    {
        mark_new(&mut transaction, consumer, now, backend, &mut group, &mut marked).await?;
        if group.is_empty() {
            continue;
        }
        let columns = SuspectColumns::new(&group);
        let counted = sqlx::query_file!(
            "src/mark_suspects.sql",
            consumer.as_str(),
            &columns.tenants as &[&str],
            &columns.keys as &[&str],
            &columns.fingerprints as &[Option<Vec<u8>>],
            lenient,
            backend.pid,
            backend.started_at,
            now + EARLY_TOLERANCE
        )
        .fetch_all(&mut *transaction)
        .await?;
        marked.extend(counted.into_iter().map(|row| (row.tenant, row.key)));
        group.retain(|(identity, _)| !is_marked(&marked, identity));
        // One that was collected between the two statements.
        mark_new(&mut transaction, consumer, now, backend, &mut group, &mut marked).await?;
    }
    transaction.commit().await?;
    Ok(suspects.iter().map(|(identity, _)| is_marked(&marked, identity)).collect())
}

/// A message and its fingerprint.
type Suspect<'a> = (&'a Identity, Option<Fingerprint>);

/// Counts a first run of those of the messages that have no key yet, and removes them from the group.
async fn mark_new(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    now: DateTime<Utc>,
    backend: Backend,
    group: &mut Vec<&Suspect<'_>>,
    marked: &mut MarkedKeys,
) -> sqlx::Result<()> {
    if group.is_empty() {
        return Ok(());
    }
    let columns = SuspectColumns::new(group);
    let new = sqlx::query_file!(
        "src/mark_new_suspects.sql",
        consumer.as_str(),
        now,
        &columns.tenants as &[&str],
        &columns.keys as &[&str],
        &columns.fingerprints as &[Option<Vec<u8>>],
        backend.pid,
        backend.started_at
    )
    .fetch_all(connection)
    .await?;
    marked.extend(new.into_iter().map(|row| (row.tenant, row.key)));
    group.retain(|(identity, _)| !is_marked(marked, identity));
    Ok(())
}

/// Tenants and keys.
type MarkedKeys = HashSet<(String, String)>;

fn is_marked(marked: &MarkedKeys, identity: &Identity) -> bool {
    marked.contains(&(identity.tenant.as_str().to_owned(), identity.key.as_str().to_owned()))
}

/// Suspects as arrays for `unnest`.
struct SuspectColumns<'a> {
    tenants: Vec<&'a str>,
    keys: Vec<&'a str>,
    fingerprints: Vec<Option<Vec<u8>>>,
}

impl<'a> SuspectColumns<'a> {
    fn new(suspects: &[&'a Suspect<'_>]) -> Self {
        Self {
            tenants: suspects.iter().map(|(identity, _)| identity.tenant.as_str()).collect(),
            keys: suspects.iter().map(|(identity, _)| identity.key.as_str()).collect(),
            fingerprints: suspects.iter().map(|(_, print)| print.map(|print| print.0.to_vec())).collect(),
        }
    }
}

/// Removes marks: the run has ended without a result, and the process is alive. Returns the marks that could not be removed because their
/// keys are held: this does not wait for them.
pub async fn unmark_suspects(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    identities: &[Identity],
) -> sqlx::Result<Vec<Identity>> {
    let mut left = MarkedKeys::new();
    for group in group_by_placement(connection, identities, |identity| identity.tenant.as_str()).await? {
        let tenants: Vec<&str> = group.iter().map(|identity| identity.tenant.as_str()).collect();
        let keys: Vec<&str> = group.iter().map(|identity| identity.key.as_str()).collect();
        let held = sqlx::query_file!(
            "src/unmark_suspects.sql",
            consumer.as_str(),
            &tenants as &[&str],
            &keys as &[&str]
        )
        .fetch_all(&mut *connection)
        .await?;
        left.extend(held.into_iter().map(|row| (row.tenant, row.key)));
    }
    Ok(identities.iter().filter(|identity| is_marked(&left, identity)).cloned().collect())
}
