//! Keys that were processed before a consumer had Oncely.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use sqlx::postgres::types::PgInterval;

use crate::identity::IdentityPart;

/// A key that is said to have taken effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seed {
    pub(crate) tenant: IdentityPart,
    pub(crate) key: IdentityPart,
    /// When; `None` where nobody knows: its retention begins now.
    pub(crate) completed_at: Option<DateTime<Utc>>,
}

/// A key that Oncely knows as something else than done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SeedConflict {
    pub(crate) tenant: String,
    pub(crate) key: String,
    /// FAILED or IN_PROGRESS.
    pub(crate) status: String,
    /// Why it was given up.
    pub(crate) reason: Option<String>,
}

/// What became of some keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seeded {
    pub(crate) seeded: i64,
    /// Done here already, or named twice.
    pub(crate) known: i64,
    /// Past the retention: not written.
    pub(crate) too_old: i64,
    pub(crate) conflicts: Vec<SeedConflict>,
}

/// The most keys of one call.
pub(crate) const MOST_SEEDS: usize = 10_000;

/// Makes keys known as completed, all of them or none; what is known stays as it is. With a `retention` they carry their own end.
///
/// # Errors
/// `42501` where the login is no operator; `ONC11` where an argument can't be right; `ONC14` where a key was collected meanwhile.
pub(crate) async fn seed_keys(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    seeds: &[Seed],
    retention: Option<Duration>,
) -> Result<Seeded, sqlx::Error> {
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
    Ok(Seeded { seeded: row.seeded, known: row.known, too_old: row.too_old, conflicts })
}
