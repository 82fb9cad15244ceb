//! Records a handler's refusal: final, like an effect.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::session::plan_anew;
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::{Identity, IdentityPart};

/// A run refused by its handler.
#[derive(Clone, Debug)]
pub struct Refusal<'a> {
    pub identity: &'a Identity,
    pub fingerprint: Option<Fingerprint>,
    /// The number of the run, from 1.
    pub attempt: u32,
    /// The handler's text.
    pub reason: &'a str,
}

/// Records refusals, each with its answer as the response. With `claimed`, the rows are claims of this same transaction; without, a key
/// that became final in the meantime stays unchanged. Returns the number of rows written.
pub async fn record_refusals(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    now: DateTime<Utc>,
    claimed: bool,
    refusals: &[Refusal<'_>],
) -> sqlx::Result<u64> {
    let tenants: Vec<String> = refusals.iter().map(|r| r.identity.tenant.as_str().to_owned()).collect();
    let keys: Vec<String> = refusals.iter().map(|r| r.identity.key.as_str().to_owned()).collect();
    let attempts: Vec<i32> = refusals.iter().map(|r| i32::try_from(r.attempt).unwrap_or(i32::MAX)).collect();
    let fingerprints: Vec<Option<Vec<u8>>> =
        refusals.iter().map(|r| r.fingerprint.map(|print| print.0.to_vec())).collect();
    let reasons: Vec<String> = refusals.iter().map(|r| r.reason.to_owned()).collect();
    plan_anew(connection).await?;
    let written = sqlx::query_file!(
        "src/refuse.sql",
        consumer.as_str(),
        now,
        &tenants,
        &keys,
        &attempts,
        &fingerprints as &[Option<Vec<u8>>],
        &reasons,
        claimed
    )
    .fetch_all(connection)
    .await?;
    Ok(written.len() as u64)
}
