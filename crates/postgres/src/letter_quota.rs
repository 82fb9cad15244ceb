//! Limits that operators set for a tenant: the storage of its dead letters, its waiting events, the retention of its keys. And their usage.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::types::Json;
use sqlx::{Connection as _, PgConnection};

use super::consumers::to_interval;

/// The default limits of a tenant's stored letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub letters: i64,
    pub bytes: i64,
}

/// The effective retention of a tenant's keys of a consumer, ignoring pauses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EffectiveRetention {
    pub consumer: String,
    /// In seconds.
    pub retention: f64,
    /// The source of the value: `tenant` (set by an operator), `redelivery_horizon` or `mirror_ttl` (the set value is shorter), `former`
    /// (the previous value was longer, and mirror entries written under it still live).
    pub because: String,
}

/// Usage and limits of a tenant: stored letters, waiting events, and the retention of its keys if one is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TenantUsage {
    pub tenant: String,
    /// Number of letters with a stored message or part of one.
    pub letters: i64,
    /// Bytes of their bodies and headers.
    pub bytes: i64,
    /// Open letters without a stored message, at the last count.
    pub left_out: i64,
    pub most_letters: i64,
    pub most_bytes: i64,
    /// Waiting events, at the last count.
    pub events: i64,
    /// Bytes of their payloads and headers.
    pub event_bytes: i64,
    pub most_events: i64,
    pub most_event_bytes: i64,
    /// Whether an operator has set limits.
    pub own_limit: bool,
    /// The retention of its keys set by an operator, in seconds.
    pub retention: Option<f64>,
    /// The effective retentions by consumer; empty if none is set.
    pub kept: Json<Vec<EffectiveRetention>>,
}

/// Counts the stored letters of each tenant; for a tenant near its limits, closed letters lose their message. Returns the number of these;
/// `None` if another session is counting.
pub async fn count_stored(connection: &mut PgConnection, quota: Quota) -> sqlx::Result<Option<i64>> {
    sqlx::query_scalar!("select oncely.count_letters($1, $2)", quota.letters, quota.bytes)
        .fetch_one(connection)
        .await
}

/// Lists the tenants with stored or omitted letters, or with settings of their own, those with most bytes first; with `tenant` only this
/// tenant.
pub async fn list_tenant_usages(
    connection: &mut PgConnection,
    quota: Quota,
    tenant: Option<&str>,
    limit: i64,
    now: DateTime<Utc>,
) -> sqlx::Result<Vec<TenantUsage>> {
    sqlx::query_file_as!(TenantUsage, "src/tenant_usage.sql", quota.letters, quota.bytes, limit, tenant, now)
        .fetch_all(connection)
        .await
}

/// A tenant over its quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TenantOverQuota {
    pub tenant: String,
    /// Open letters without a stored message, at the last count.
    pub left_out: i64,
}

/// Lists the tenants with open letters that are not stored, those with most of them first.
pub async fn list_tenants_over_quota(
    connection: &mut PgConnection,
    limit: i64,
) -> sqlx::Result<Vec<TenantOverQuota>> {
    sqlx::query_as!(
        TenantOverQuota,
        "select tenant, left_out from oncely.letter_usage where left_out > 0 order by left_out desc, tenant limit $1",
        limit
    )
    .fetch_all(connection)
    .await
}

/// Limits that an operator sets for a tenant; `None` leaves one unchanged.
#[derive(Clone, Copy, Debug)]
pub struct TenantLimits {
    /// Maximum number and bytes of letters with a stored message; `None` for the configuration's default.
    pub letters: Option<(Option<i64>, Option<i64>)>,
    /// Maximum number and bytes of waiting events before those of clients are refused; `None` for the database's default.
    pub events: Option<(Option<i64>, Option<i64>)>,
    /// The retention of its keys.
    pub retention: Option<TenantRetention>,
}

/// The retention of a tenant's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantRetention {
    /// That of each consumer.
    OfConsumers,
    Own(Duration),
}

/// Sets a tenant's limits on behalf of an operator. Recorded in the same transaction.
pub async fn limit_tenant(
    connection: &mut PgConnection,
    tenant: &str,
    limits: TenantLimits,
    user: &str,
    note: Option<&str>,
) -> sqlx::Result<()> {
    let mut transaction = connection.begin().await?;
    if let Some((letters, bytes)) = limits.letters {
        sqlx::query!("select oncely.limit_tenant($1, $2, $3, $4, $5)", tenant, letters, bytes, user, note)
            .fetch_one(&mut *transaction)
            .await?;
    }
    if let Some((events, bytes)) = limits.events {
        sqlx::query!("select oncely.limit_events($1, $2, $3, $4, $5)", tenant, events, bytes, user, note)
            .fetch_one(&mut *transaction)
            .await?;
    }
    if let Some(retention) = limits.retention {
        let retention = match retention {
            TenantRetention::OfConsumers => None,
            TenantRetention::Own(own) => Some(to_interval(own)),
        };
        sqlx::query!("select oncely.set_tenant_retention($1, $2, $3, $4)", tenant, retention, user, note)
            .fetch_one(&mut *transaction)
            .await?;
    }
    transaction.commit().await
}
