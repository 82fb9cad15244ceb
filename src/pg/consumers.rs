//! What the database knows of consumers: what decides about their keys, whichever file a process was started with.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;
use sqlx::postgres::types::PgInterval;

/// A consumer as the database knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KnownConsumer {
    /// Its name.
    pub consumer: String,
    /// How long its keys are remembered.
    #[serde(serialize_with = "seconds")]
    pub retention: Duration,
    /// The oldest copy that may still come, as the worker that started last has it.
    #[serde(serialize_with = "seconds")]
    pub redelivery_horizon: Duration,
    /// What is compared when a key comes back ([`crate::fingerprint::FingerprintPolicy::name`]).
    pub fingerprint: String,
    /// What happens to a key that comes back with another payload: `dead_letter` or `duplicate`.
    pub on_conflict: String,
    /// When something here last changed.
    pub changed_at: DateTime<Utc>,
    /// Who changed it.
    pub changed_by: String,
}

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// A duration from a column of microseconds.
pub(super) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

pub(super) fn interval(duration: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(duration.as_micros()).unwrap_or(i64::MAX) }
}

/// All consumers whose workers have started on this database, by name.
///
/// # Errors
/// When the query fails.
pub async fn known_consumers(connection: &mut PgConnection) -> Result<Vec<KnownConsumer>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"select consumer, (extract(epoch from retention) * 1000000)::bigint as "retention!",
            (extract(epoch from redelivery_horizon) * 1000000)::bigint as "redelivery_horizon!", fingerprint, on_conflict,
            changed_at, changed_by
        from oncely.consumers
        order by consumer"#
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| KnownConsumer {
            consumer: row.consumer,
            retention: duration(row.retention),
            redelivery_horizon: duration(row.redelivery_horizon),
            fingerprint: row.fingerprint,
            on_conflict: row.on_conflict,
            changed_at: row.changed_at,
            changed_by: row.changed_by,
        })
        .collect())
}

/// For how long these tenants' keys are kept at present, by tenant and consumer, pauses left aside (`oncely.tenant_retention`). For
/// auditors of a tenant, too, who may not read who changed it.
pub(crate) async fn retentions(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    tenants: &[String],
) -> Result<BTreeMap<(String, String), Duration>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"select tenant as "tenant!", consumer as "consumer!", (extract(epoch from retention) * 1000000)::bigint as "retention!"
        from oncely.list_retentions($1, $2)"#,
        now,
        tenants
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|row| ((row.tenant, row.consumer), duration(row.retention))).collect())
}

/// How far a consumer's memory reaches back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) consumer: String,
    /// What was decided before this is forgotten: its keys may be collected.
    pub(crate) before: DateTime<Utc>,
    /// Tenants with a retention of their own.
    pub(crate) tenants: Vec<String>,
    /// Of these tenants alone, and not of all others.
    pub(crate) is_own: bool,
    /// The time at which this was asked.
    pub(crate) at: DateTime<Utc>,
}

/// How far the memories of all known consumers reach back, by the time that it is: of each consumer one for all tenants, and one for
/// those with a retention of their own that comes to the same. The time in which a consumer was paused does not count
/// (`oncely.forgotten_before`), and a retention that was shortened counts on for as long as mirror entries of before live
/// (`oncely.effective_retention`, `oncely.tenant_retention`).
pub(crate) async fn memories(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
) -> Result<Vec<Memory>, sqlx::Error> {
    sqlx::query_as!(
        Memory,
        r#"with own as (
            select l.tenant, l.retention, l.former_retention, l.former_until
            from oncely.tenant_limits as l
            where l.retention is not null or l.former_until > $1
        ), of_all as (
            select c.consumer, c.paused, c.redelivery_horizon,
                oncely.effective_retention($1, c.retention, c.former_retention, c.former_until) as retention
            from oncely.consumers as c
        ), kept as (
            select c.consumer, c.paused, c.retention, array(select o.tenant from own as o) as tenants, false as is_own
            from of_all as c
            union all
            select c.consumer, c.paused, r.retention, array_agg(o.tenant), true
            from of_all as c
            cross join oncely.cell as e
            cross join own as o
            cross join lateral (
                select oncely.tenant_retention(
                    $1, c.retention, c.redelivery_horizon, e.mirror_ttl, o.retention, o.former_retention, o.former_until
                ) as retention
            ) as r
            group by c.consumer, c.paused, r.retention
        )
        select consumer as "consumer!", oncely.bounded(oncely.forgotten_before($1, retention, paused)) as "before!",
            tenants as "tenants!", is_own as "is_own!", $1::timestamptz as "at!"
        from kept
        order by consumer, is_own, retention"#,
        now
    )
    .fetch_all(connection)
    .await
}

/// What a worker starts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registration<'a> {
    pub(crate) consumer: &'a str,
    pub(crate) retention: Duration,
    pub(crate) redelivery_horizon: Duration,
    pub(crate) fingerprint: &'a str,
    /// `dead_letter` or `duplicate`.
    pub(crate) on_conflict: &'static str,
    pub(crate) worker: &'a str,
}

/// What the database knew, and knows now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registered {
    /// How long keys are remembered: the longest known.
    pub(crate) retention: Duration,
    /// How old a copy may be that still comes: the longest known.
    pub(crate) redelivery_horizon: Duration,
    /// The policy of before; `None` where the consumer is new.
    pub(crate) former_fingerprint: Option<String>,
}

/// Notes what a worker starts with. Neither a retention nor a horizon is shortened by it.
pub(crate) async fn register_consumer(
    connection: &mut PgConnection,
    with: Registration<'_>,
) -> Result<Registered, sqlx::Error> {
    let compares = Some((with.fingerprint, with.on_conflict));
    register(connection, with.consumer, with.retention, with.redelivery_horizon, compares, with.worker).await
}

/// Notes for how long somebody beside its workers wants the keys of a queue's consumer: what its workers have said of it stays.
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) async fn register_shared(
    connection: &mut PgConnection,
    consumer: &str,
    retention: Duration,
    worker: &str,
) -> Result<Registered, sqlx::Error> {
    // The shortest horizon that there is.
    register(connection, consumer, retention, Duration::from_secs(1), None, worker).await
}

async fn register(
    connection: &mut PgConnection,
    consumer: &str,
    retention: Duration,
    redelivery_horizon: Duration,
    compares: Option<(&str, &str)>,
    worker: &str,
) -> Result<Registered, sqlx::Error> {
    let row = sqlx::query!(
        r#"select (extract(epoch from r.known_retention) * 1000000)::bigint as "retention!",
            (extract(epoch from r.known_redelivery_horizon) * 1000000)::bigint as "redelivery_horizon!", r.former_fingerprint
        from oncely.register_consumer($1, $2, $3, $4, $5, $6) as r"#,
        consumer,
        interval(retention),
        interval(redelivery_horizon),
        compares.map(|(fingerprint, _)| fingerprint),
        compares.map(|(_, on_conflict)| on_conflict),
        worker
    )
    .fetch_one(connection)
    .await?;
    Ok(Registered {
        retention: duration(row.retention),
        redelivery_horizon: duration(row.redelivery_horizon),
        former_fingerprint: row.former_fingerprint,
    })
}

/// Notes for how long a relay's mirror entries live, before it writes any. Harmless if it is repeated.
///
/// # Errors
/// When the query fails; `42501` where the login is no relay.
pub(crate) async fn register_mirror_ttl(
    connection: &mut PgConnection,
    ttl: Duration,
) -> Result<(), sqlx::Error> {
    sqlx::query!("select oncely.register_mirror_ttl($1)", interval(ttl)).fetch_one(connection).await?;
    Ok(())
}

/// The longest that a mirror entry may live: the longest `mirror.ttl` of the relays; zero without a mirror.
///
/// # Errors
/// When the query fails.
pub(crate) async fn mirror_ttl(connection: &mut PgConnection) -> Result<Duration, sqlx::Error> {
    let row = sqlx::query!(
        r#"select (extract(epoch from mirror_ttl) * 1000000)::bigint as "ttl!" from oncely.cell"#
    )
    .fetch_one(connection)
    .await?;
    Ok(duration(row.ttl))
}

/// Sets a retention, shorter too, on behalf of a person, and where it is said the horizon; recorded in the same transaction.
pub(crate) async fn set_retention(
    connection: &mut PgConnection,
    consumer: &str,
    retention: Duration,
    redelivery_horizon: Option<Duration>,
    user: &str,
    note: Option<&str>,
) -> Result<(), sqlx::Error> {
    let horizon = redelivery_horizon.map(interval);
    sqlx::query!(
        "select oncely.set_retention($1, $2, $3, $4, $5)",
        consumer,
        interval(retention),
        horizon,
        user,
        note
    )
    .fetch_one(connection)
    .await?;
    Ok(())
}
