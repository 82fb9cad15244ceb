//! Updates of a key after its handler ran.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::session::plan_anew;
use super::tenant_groups::group_by_placement;
use oncely_core::decide::KeyStatus;
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::{Identity, IdentityPart};
use oncely_core::reason::Reason;

#[derive(Clone, Debug)]
pub struct KeyFailure<'a> {
    pub identity: &'a Identity,
    pub fingerprint: Option<Fingerprint>,
    /// The number of the run, from 1.
    pub attempt: u32,
    /// The reason to give the key up; `None` if it may run again.
    pub reason: Option<Reason>,
    /// No copy runs before this time.
    pub not_before: Option<DateTime<Utc>>,
    pub error: String,
    /// SQLSTATE of a failure caused by the message.
    pub code: Option<String>,
}

/// Records failed runs. With `claimed`, the rows are claims of this same transaction (COMPLETED, not yet visible to others) and are set
/// back; without, a key that took effect in the meantime stays unchanged. Returns the number of rows written.
pub async fn record_failures(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    now: DateTime<Utc>,
    claimed: bool,
    failures: &[KeyFailure<'_>],
) -> sqlx::Result<u64> {
    plan_anew(connection).await?;
    let mut written = 0;
    for group in group_by_placement(connection, failures, |f| f.identity.tenant.as_str()).await? {
        let tenants: Vec<&str> = group.iter().map(|f| f.identity.tenant.as_str()).collect();
        let keys: Vec<&str> = group.iter().map(|f| f.identity.key.as_str()).collect();
        let status =
            |f: &&KeyFailure<'_>| if f.reason.is_some() { KeyStatus::Failed } else { KeyStatus::InProgress };
        let statuses: Vec<&str> = group.iter().map(|f| status(f).as_str()).collect();
        let attempts: Vec<i32> = group.iter().map(|f| i32::try_from(f.attempt).unwrap_or(i32::MAX)).collect();
        let fingerprints: Vec<Option<Vec<u8>>> =
            group.iter().map(|f| f.fingerprint.map(|print| print.0.to_vec())).collect();
        let reasons: Vec<Option<&str>> = group.iter().map(|f| f.reason.map(Reason::as_str)).collect();
        let errors: Vec<&str> = group.iter().map(|f| f.error.as_str()).collect();
        let codes: Vec<Option<&str>> = group.iter().map(|f| f.code.as_deref()).collect();
        let not_before: Vec<Option<DateTime<Utc>>> = group.iter().map(|f| f.not_before).collect();
        if !claimed {
            let new = sqlx::query_file!(
                "src/fail_new.sql",
                consumer.as_str(),
                now,
                &tenants as &[&str],
                &keys as &[&str],
                &statuses as &[&str],
                &attempts,
                &fingerprints as &[Option<Vec<u8>>],
                &reasons as &[Option<&str>],
                &errors as &[&str],
                &not_before as &[Option<DateTime<Utc>>],
                &codes as &[Option<&str>]
            )
            .execute(&mut *connection)
            .await?
            .rows_affected();
            written += new;
            if new == group.len() as u64 {
                continue;
            }
        }
        written += sqlx::query_file!(
            "src/fail.sql",
            consumer.as_str(),
            now,
            &tenants as &[&str],
            &keys as &[&str],
            &statuses as &[&str],
            &attempts,
            &fingerprints as &[Option<Vec<u8>>],
            &reasons as &[Option<&str>],
            &errors as &[&str],
            claimed,
            &not_before as &[Option<DateTime<Utc>>],
            &codes as &[Option<&str>]
        )
        .execute(&mut *connection)
        .await?
        .rows_affected();
    }
    Ok(written)
}

/// Stores handlers' responses, JSON as text, for keys claimed in this transaction. Returns the number of rows written.
pub async fn store_responses(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    responses: &[(&Identity, &str)],
) -> sqlx::Result<u64> {
    let tenants: Vec<String> = responses.iter().map(|(i, _)| i.tenant.as_str().to_owned()).collect();
    let keys: Vec<String> = responses.iter().map(|(i, _)| i.key.as_str().to_owned()).collect();
    let values: Vec<&str> = responses.iter().map(|(_, value)| *value).collect();
    let result = sqlx::query!(
        "update oncely.idempotency_keys as i
         set response = r.response::jsonb
         from unnest($2::text[], $3::text[], $4::text[]) as r (tenant, key, response)
         where oncely.in_group(i.tenant, $2) and i.tenant = r.tenant and i.consumer = $1 and i.key = r.key",
        consumer.as_str(),
        &tenants,
        &keys,
        &values as &[&str]
    )
    .execute(connection)
    .await?;
    Ok(result.rows_affected())
}
