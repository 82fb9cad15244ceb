//! Records a handler's refusal: final, like an effect.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::session::plan_anew;
use super::tenant_groups::group_by_placement;
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
    plan_anew(connection).await?;
    let mut written = 0;
    for group in group_by_placement(connection, refusals, |r| r.identity.tenant.as_str()).await? {
        let tenants: Vec<&str> = group.iter().map(|r| r.identity.tenant.as_str()).collect();
        let keys: Vec<&str> = group.iter().map(|r| r.identity.key.as_str()).collect();
        let attempts: Vec<i32> = group.iter().map(|r| i32::try_from(r.attempt).unwrap_or(i32::MAX)).collect();
        let fingerprints: Vec<Option<Vec<u8>>> =
            group.iter().map(|r| r.fingerprint.map(|print| print.0.to_vec())).collect();
        let reasons: Vec<&str> = group.iter().map(|r| r.reason).collect();
        if !claimed {
            let new = sqlx::query_file!(
                "src/refuse_new.sql",
                consumer.as_str(),
                now,
                &tenants as &[&str],
                &keys as &[&str],
                &attempts,
                &fingerprints as &[Option<Vec<u8>>],
                &reasons as &[&str]
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
            "src/refuse.sql",
            consumer.as_str(),
            now,
            &tenants as &[&str],
            &keys as &[&str],
            &attempts,
            &fingerprints as &[Option<Vec<u8>>],
            &reasons as &[&str],
            claimed
        )
        .execute(&mut *connection)
        .await?
        .rows_affected();
    }
    Ok(written)
}
