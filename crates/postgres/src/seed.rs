//! Seeds keys that were processed before a consumer had Oncely.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use sqlx::postgres::types::PgInterval;

use oncely_core::identity::IdentityPart;

/// A key to be recorded as completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    pub tenant: IdentityPart,
    pub key: IdentityPart,
    /// When it took effect; `None` if unknown: its retention begins now.
    pub completed_at: Option<DateTime<Utc>>,
}

/// A key that Oncely knows in another state than completed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeedConflict {
    pub tenant: String,
    pub key: String,
    /// FAILED or IN_PROGRESS.
    pub status: String,
    /// The reason why it was given up.
    pub reason: Option<String>,
}

/// The result of seeding keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedResult {
    pub seeded: i64,
    /// Already completed, or named twice.
    pub known: i64,
    /// Past the retention: not written.
    pub too_old: i64,
    pub conflicts: Vec<SeedConflict>,
}

/// Maximum number of keys of one call.
pub const MAX_SEEDS: usize = 10_000;

/// Records keys as completed, all of them or none; known keys stay unchanged. With a `retention` they have an expiry of their own.
///
/// # Errors
/// If the login is not an operator (`42501`), an argument is invalid (`ONC11`), or a key was collected in the meantime (`ONC14`).
pub async fn seed_keys(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    seeds: &[Seed],
    retention: Option<Duration>,
) -> sqlx::Result<SeedResult> {
    let tenants: Vec<&str> = seeds.iter().map(|seed| seed.tenant.as_str()).collect();
    let keys: Vec<&str> = seeds.iter().map(|seed| seed.key.as_str()).collect();
    let times: Vec<Option<DateTime<Utc>>> = seeds.iter().map(|seed| seed.completed_at).collect();
    let retention = retention.and_then(|retention| PgInterval::try_from(retention).ok());
    let row = sqlx::query!(
        r#"select seeded as "seeded!", known as "known!", too_old as "too_old!", conflicts as "conflicts!"
        from oncely.seed_keys($1, $2, $3, $4, $5)"#,
        consumer.as_str(),
        &tenants as &[&str],
        &keys as &[&str],
        &times as &[Option<DateTime<Utc>>],
        retention
    )
    .fetch_one(connection)
    .await?;
    let conflicts =
        serde_json::from_value(row.conflicts).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(SeedResult { seeded: row.seeded, known: row.known, too_old: row.too_old, conflicts })
}
