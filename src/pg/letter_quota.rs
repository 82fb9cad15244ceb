//! What an operator has said for a tenant: how much of its dead letters may be stored, how many events may wait, how long its keys are
//! remembered. And how much is, and do.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::types::Json;
use sqlx::{Connection as _, PgConnection};

use super::consumers::interval;

/// How much of a tenant's letters may be stored, where no operator has said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(crate) letters: i64,
    pub(crate) bytes: i64,
}

/// For how long a tenant's keys of a consumer are kept at present, pauses left aside.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) consumer: String,
    /// In seconds.
    pub(crate) retention: f64,
    /// Why: `tenant` (it was said), `redelivery_horizon`, `mirror_ttl` (what was said is shorter), `former` (something else was said
    /// before, and mirror entries of then live on).
    pub(crate) because: String,
}

/// What is stored of a tenant's letters, and may be; which events wait, and may; and for how long its keys are remembered, where that was said.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct TenantUsage {
    pub(crate) tenant: String,
    /// Letters of whose message something is stored.
    pub(crate) letters: i64,
    /// Bytes of their bodies and headers.
    pub(crate) bytes: i64,
    /// Open letters whose message is not stored, as it was counted last.
    pub(crate) left_out: i64,
    pub(crate) most_letters: i64,
    pub(crate) most_bytes: i64,
    /// Events that wait, as they were counted last.
    pub(crate) events: i64,
    /// Bytes of their payloads and headers.
    pub(crate) event_bytes: i64,
    pub(crate) most_events: i64,
    pub(crate) most_event_bytes: i64,
    /// An operator has said how much.
    pub(crate) own_limit: bool,
    /// How long an operator has said that its keys are remembered, in seconds.
    pub(crate) retention: Option<f64>,
    /// What comes of it, by consumer; empty where nothing was said.
    pub(crate) kept: Json<Vec<Kept>>,
}

/// Counts what is stored of each tenant's letters; where one is about to have no more room, closed letters make some. Returns how many
/// did; `None` where somebody else is counting.
pub(crate) async fn count_stored(
    connection: &mut PgConnection,
    quota: Quota,
) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar!("select oncely.count_letters($1, $2)", quota.letters, quota.bytes)
        .fetch_one(connection)
        .await
}

/// Tenants that have letters stored or left out, or something of their own, or this one alone: those with most bytes first.
pub(crate) async fn tenant_usages(
    connection: &mut PgConnection,
    quota: Quota,
    tenant: Option<&str>,
    limit: i64,
    now: DateTime<Utc>,
) -> Result<Vec<TenantUsage>, sqlx::Error> {
    sqlx::query_as!(
        TenantUsage,
        r#"select t.tenant as "tenant!", least(coalesce(u.letters, 0) + g.letters, 1e18)::bigint as "letters!",
            least(coalesce(u.bytes, 0) + g.bytes, 1e18)::bigint as "bytes!", coalesce(u.left_out, 0) as "left_out!",
            coalesce(l.letters, $1) as "most_letters!", coalesce(l.letter_bytes, $2) as "most_bytes!",
            coalesce(u.events, 0) as "events!", coalesce(u.event_bytes, 0) as "event_bytes!",
            coalesce(l.events, e.tenant_events) as "most_events!",
            coalesce(l.event_bytes, e.tenant_event_bytes) as "most_event_bytes!",
            coalesce(l.letters, l.letter_bytes, l.events, l.event_bytes) is not null as "own_limit!",
            extract(epoch from l.retention)::float8 as retention, k.kept as "kept!: Json<Vec<Kept>>"
        from (
            select u.tenant from oncely.letter_usage as u
            union select l.tenant from oncely.tenant_limits as l
            union select s.tenant from oncely.letter_growth as s
        ) as t
        cross join oncely.cell as e
        left join oncely.letter_usage as u on u.tenant = t.tenant
        left join oncely.tenant_limits as l on l.tenant = t.tenant
        cross join lateral (
            select coalesce(sum(s.letters), 0) as letters, coalesce(sum(s.bytes), 0) as bytes
            from oncely.letter_growth as s where s.tenant = t.tenant
        ) as g
        cross join lateral (
            select coalesce(
                jsonb_agg(
                    jsonb_build_object(
                        'consumer', r.consumer, 'retention', extract(epoch from r.retention), 'because', case
                            when l.former_until > $5 then 'former'
                            when r.retention = l.retention then 'tenant'
                            when r.retention = r.redelivery_horizon then 'redelivery_horizon'
                            else 'mirror_ttl'
                        end
                    ) order by r.consumer
                ),
                '[]'
            ) as kept
            from (
                select c.consumer, c.redelivery_horizon, oncely.tenant_retention(
                    $5, oncely.effective_retention($5, c.retention, c.former_retention, c.former_until),
                    c.redelivery_horizon, e.mirror_ttl, l.retention, l.former_retention, l.former_until
                ) as retention
                from oncely.consumers as c
                where l.retention is not null or l.former_until > $5
            ) as r
        ) as k
        where $4::text is null or t.tenant = $4
        order by coalesce(u.bytes, 0) + g.bytes desc, t.tenant
        limit $3"#,
        quota.letters,
        quota.bytes,
        limit,
        tenant,
        now
    )
    .fetch_all(connection)
    .await
}

/// A tenant that is over its quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct OverQuota {
    pub(crate) tenant: String,
    /// Open letters whose message is not stored, as it was counted last.
    pub(crate) left_out: i64,
}

/// Tenants of which open letters are not stored, those with most of them first.
pub(crate) async fn over_quota(
    connection: &mut PgConnection,
    limit: i64,
) -> Result<Vec<OverQuota>, sqlx::Error> {
    sqlx::query_as!(
        OverQuota,
        "select tenant, left_out from oncely.letter_usage where left_out > 0 order by left_out desc, tenant limit $1",
        limit
    )
    .fetch_all(connection)
    .await
}

/// What a person says for a tenant; `None` where it stays as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TenantLimits {
    /// Of how many letters the message may be stored, and how many bytes; `None` for what the configuration says.
    pub(crate) letters: Option<(Option<i64>, Option<i64>)>,
    /// How many events may wait before those of clients are refused, and how many bytes; `None` for what the database says of all.
    pub(crate) events: Option<(Option<i64>, Option<i64>)>,
    /// How long its keys are remembered; `None` for what each consumer says.
    pub(crate) retention: Option<Option<Duration>>,
}

/// Says what counts for a tenant, on behalf of a person. Recorded in the same transaction.
pub(crate) async fn limit_tenant(
    connection: &mut PgConnection,
    tenant: &str,
    limits: TenantLimits,
    user: &str,
    note: Option<&str>,
) -> Result<(), sqlx::Error> {
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
        let retention = retention.map(interval);
        sqlx::query!("select oncely.set_tenant_retention($1, $2, $3, $4)", tenant, retention, user, note)
            .fetch_one(&mut *transaction)
            .await?;
    }
    transaction.commit().await
}
