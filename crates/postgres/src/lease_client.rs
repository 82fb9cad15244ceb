//! Calls the lease protocol for a program without a worker.

use std::time::Duration;

use serde_json::Value;
use sqlx::PgConnection;

use super::lease::{LeaseIdRef, to_duration, to_interval};
use oncely_core::identity::Identity;

/// The arguments of a claim.
#[derive(Clone, Copy, Debug)]
pub struct ClientClaim<'a> {
    pub identity: &'a Identity,
    /// SHA-256 of the payload.
    pub digest: &'a [u8; 32],
    pub owner: &'a str,
    pub time: Duration,
    pub max_run: Duration,
    pub retention: Duration,
    pub max_crashes: u32,
    /// Whether this client was not cut off from the server itself.
    pub may_take_over: bool,
}

#[derive(Debug)]
pub struct ClientClaimOutcome {
    pub outcome: String,
    pub token: Option<i64>,
    pub attempt: Option<i32>,
    pub taken_over: Option<bool>,
    pub delay: Option<Duration>,
    pub response: Option<Value>,
    pub reason: Option<String>,
    pub detail: Option<String>,
}

/// Claims a key as a client of the SQL protocol does.
pub async fn claim_lease(
    connection: &mut PgConnection,
    claim: ClientClaim<'_>,
) -> sqlx::Result<ClientClaimOutcome> {
    let row = sqlx::query!(
        r#"select outcome as "outcome!", token, attempt, taken_over, delay, response, reason, detail
         from oncely.claim_lease($1, $2, $3, $4, $5, $6, $7, $8, 'dead_letter', $9, may_take_over => $10)"#,
        claim.identity.tenant.as_str(),
        claim.identity.consumer.as_str(),
        claim.identity.key.as_str(),
        &claim.digest[..],
        claim.owner,
        to_interval(claim.time),
        to_interval(claim.max_run),
        to_interval(claim.retention),
        i32::try_from(claim.max_crashes).unwrap_or(i32::MAX),
        claim.may_take_over
    )
    .fetch_one(connection)
    .await?;
    Ok(ClientClaimOutcome {
        outcome: row.outcome,
        token: row.token,
        attempt: row.attempt,
        taken_over: row.taken_over,
        delay: row.delay.map(to_duration),
        response: row.response,
        reason: row.reason,
        detail: row.detail,
    })
}

/// Extends a lease; returns the time left, or `None` if the lease is lost.
pub async fn renew_lease(
    connection: &mut PgConnection,
    lease: LeaseIdRef<'_>,
    time: Duration,
) -> sqlx::Result<Option<Duration>> {
    let remaining = sqlx::query_scalar!(
        "select oncely.renew_lease($1, $2, $3, $4, $5)",
        lease.identity.tenant.as_str(),
        lease.identity.consumer.as_str(),
        lease.identity.key.as_str(),
        lease.token,
        to_interval(time)
    )
    .fetch_one(connection)
    .await?;
    Ok(remaining.map(to_duration))
}

/// The stored state of a key.
#[derive(Debug)]
pub struct KnownLease {
    pub status: String,
    pub owner: Option<String>,
    pub token: Option<i64>,
    pub attempts: i32,
    pub crash_attempts: i32,
    pub reason: Option<String>,
    pub response: Option<Value>,
}

/// Reads the stored state of a key; `None` if the key is unknown. For logins that may read keys.
pub async fn read_lease_state(
    connection: &mut PgConnection,
    identity: &Identity,
) -> sqlx::Result<Option<KnownLease>> {
    sqlx::query_as!(
        KnownLease,
        r#"select i.status::pg_catalog.text as "status!", i.owner, i.fencing_token as token, i.attempts, i.crash_attempts, i.reason, i.response
         from oncely.idempotency_keys as i
         where i.tenant = $1 and i.consumer = $2 and i.key = $3"#,
        identity.tenant.as_str(),
        identity.consumer.as_str(),
        identity.key.as_str()
    )
    .fetch_optional(connection)
    .await
}
