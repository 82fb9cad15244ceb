//! A handler's "no": final, like an effect.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::session::plan_anew;
use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, IdentityPart};

/// A run whose handler said no.
#[derive(Clone, Debug)]
pub(crate) struct Refusal<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) fingerprint: Option<Fingerprint>,
    /// Which run it was, from 1.
    pub(crate) attempt: u32,
    /// In the handler's words.
    pub(crate) reason: &'a str,
}

/// Records refusals, each with its answer as the response. With `claimed`, the rows are claims of this very transaction; without,
/// a key that is final in the meantime is left alone. Returns how many were written.
pub(crate) async fn refuse(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    now: DateTime<Utc>,
    claimed: bool,
    refusals: &[Refusal<'_>],
) -> Result<u64, sqlx::Error> {
    let tenants: Vec<String> = refusals.iter().map(|r| r.identity.tenant.as_str().to_owned()).collect();
    let keys: Vec<String> = refusals.iter().map(|r| r.identity.key.as_str().to_owned()).collect();
    let attempts: Vec<i32> = refusals.iter().map(|r| i32::try_from(r.attempt).unwrap_or(i32::MAX)).collect();
    let fingerprints: Vec<Option<Vec<u8>>> =
        refusals.iter().map(|r| r.fingerprint.map(|print| print.0.to_vec())).collect();
    let reasons: Vec<String> = refusals.iter().map(|r| r.reason.to_owned()).collect();
    plan_anew(connection).await?;
    let written = sqlx::query_file!(
        "src/pg/refuse.sql",
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
