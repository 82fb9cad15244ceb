//! What is written to a key after its handler ran.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::session::plan_anew;
use crate::decide::KeyStatus;
use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, IdentityPart};
use crate::reason::Reason;

/// A run that failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) fingerprint: Option<Fingerprint>,
    /// Which run it was, from 1.
    pub(crate) attempt: u32,
    /// Why it is given up; `None` where it may run again.
    pub(crate) reason: Option<Reason>,
    /// No copy runs before this time.
    pub(crate) not_before: Option<DateTime<Utc>>,
    pub(crate) error: String,
    /// SQLSTATE of a failure that the message answers for.
    pub(crate) code: Option<String>,
}

/// Records failed runs. With `claimed`, the rows are claims of this very transaction (COMPLETED, not yet visible to
/// anyone) and are set back; without, a key that took effect in the meantime is left alone. Returns how many were written.
pub(crate) async fn fail(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    now: DateTime<Utc>,
    claimed: bool,
    failures: &[Failure<'_>],
) -> Result<u64, sqlx::Error> {
    let column = |of: fn(&Failure<'_>) -> String| failures.iter().map(of).collect::<Vec<_>>();
    let tenants = column(|f| f.identity.tenant.as_str().to_owned());
    let keys = column(|f| f.identity.key.as_str().to_owned());
    let statuses = column(|f| {
        let status = if f.reason.is_some() { KeyStatus::Failed } else { KeyStatus::InProgress };
        status.as_str().to_owned()
    });
    let attempts: Vec<i32> = failures.iter().map(|f| i32::try_from(f.attempt).unwrap_or(i32::MAX)).collect();
    let fingerprints: Vec<Option<Vec<u8>>> =
        failures.iter().map(|f| f.fingerprint.map(|print| print.0.to_vec())).collect();
    let reasons: Vec<Option<String>> =
        failures.iter().map(|f| f.reason.map(|r| r.as_str().to_owned())).collect();
    let errors = column(|f| f.error.clone());
    let codes: Vec<Option<String>> = failures.iter().map(|f| f.code.clone()).collect();
    let not_before: Vec<Option<DateTime<Utc>>> = failures.iter().map(|f| f.not_before).collect();
    plan_anew(connection).await?;
    let written = sqlx::query_file!(
        "src/pg/fail.sql",
        consumer.as_str(),
        now,
        &tenants,
        &keys,
        &statuses,
        &attempts,
        &fingerprints as &[Option<Vec<u8>>],
        &reasons as &[Option<String>],
        &errors,
        claimed,
        &not_before as &[Option<DateTime<Utc>>],
        &codes as &[Option<String>]
    )
    .fetch_all(connection)
    .await?;
    Ok(written.len() as u64)
}

/// Stores what handlers returned, JSON as text, for keys claimed in this transaction. Returns how many rows were written.
pub(crate) async fn store_responses(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    responses: &[(&Identity, &str)],
) -> Result<u64, sqlx::Error> {
    let tenants: Vec<String> = responses.iter().map(|(i, _)| i.tenant.as_str().to_owned()).collect();
    let keys: Vec<String> = responses.iter().map(|(i, _)| i.key.as_str().to_owned()).collect();
    let values: Vec<&str> = responses.iter().map(|(_, value)| *value).collect();
    let done = sqlx::query!(
        "update oncely.idempotency_keys as i
         set response = r.response::jsonb
         from unnest($2::text[], $3::text[], $4::text[]) as r (tenant, key, response)
         where i.tenant = r.tenant and i.consumer = $1 and i.key = r.key",
        consumer.as_str(),
        &tenants,
        &keys,
        &values as &[&str]
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
