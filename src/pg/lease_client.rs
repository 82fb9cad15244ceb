//! The lease of a key as a client of the protocol asks for it: what a program without a worker says.

use std::time::Duration;

use serde_json::Value;
use sqlx::PgConnection;

use super::lease::{Held, duration, interval};
use crate::identity::Identity;

/// What is asked with a claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientClaim<'a> {
    pub(crate) identity: &'a Identity,
    /// SHA-256.
    pub(crate) digest: &'a [u8; 32],
    pub(crate) owner: &'a str,
    pub(crate) time: Duration,
    pub(crate) max_run: Duration,
    pub(crate) retention: Duration,
    pub(crate) max_crashes: u32,
    /// Whoever asks was not cut off itself.
    pub(crate) may_take_over: bool,
}

/// What `oncely.claim_lease` answers.
#[derive(Debug)]
pub(crate) struct ClientAnswer {
    pub(crate) outcome: String,
    pub(crate) token: Option<i64>,
    pub(crate) attempt: Option<i32>,
    pub(crate) taken_over: Option<bool>,
    pub(crate) delay: Option<Duration>,
    pub(crate) response: Option<Value>,
    pub(crate) reason: Option<String>,
    pub(crate) detail: Option<String>,
}

/// Claims a key under a lease.
pub(crate) async fn claim_lease(
    connection: &mut PgConnection,
    claim: ClientClaim<'_>,
) -> Result<ClientAnswer, sqlx::Error> {
    let row = sqlx::query!(
        r#"select outcome as "outcome!", token, attempt, taken_over, delay, response, reason, detail
         from oncely.claim_lease($1, $2, $3, $4, $5, $6, $7, $8, 'dead_letter', $9, may_take_over => $10)"#,
        claim.identity.tenant.as_str(),
        claim.identity.consumer.as_str(),
        claim.identity.key.as_str(),
        &claim.digest[..],
        claim.owner,
        interval(claim.time),
        interval(claim.max_run),
        interval(claim.retention),
        i32::try_from(claim.max_crashes).unwrap_or(i32::MAX),
        claim.may_take_over
    )
    .fetch_one(connection)
    .await?;
    Ok(ClientAnswer {
        outcome: row.outcome,
        token: row.token,
        attempt: row.attempt,
        taken_over: row.taken_over,
        delay: row.delay.map(duration),
        response: row.response,
        reason: row.reason,
        detail: row.detail,
    })
}

/// Makes a lease end later: what is left of it; `None` where it is lost.
pub(crate) async fn renew_lease(
    connection: &mut PgConnection,
    held: Held<'_>,
    time: Duration,
) -> Result<Option<Duration>, sqlx::Error> {
    let remaining = sqlx::query_scalar!(
        "select oncely.renew_lease($1, $2, $3, $4, $5)",
        held.identity.tenant.as_str(),
        held.identity.consumer.as_str(),
        held.identity.key.as_str(),
        held.token,
        interval(time)
    )
    .fetch_one(connection)
    .await?;
    Ok(remaining.map(duration))
}

/// What stands in a key's row.
#[derive(Debug)]
pub(crate) struct KnownLease {
    pub(crate) status: String,
    pub(crate) owner: Option<String>,
    pub(crate) token: Option<i64>,
    pub(crate) attempts: i32,
    pub(crate) crash_attempts: i32,
    pub(crate) reason: Option<String>,
    pub(crate) response: Option<Value>,
}

/// What is known of a key. For logins that may read keys.
pub(crate) async fn known_lease(
    connection: &mut PgConnection,
    identity: &Identity,
) -> Result<Option<KnownLease>, sqlx::Error> {
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
