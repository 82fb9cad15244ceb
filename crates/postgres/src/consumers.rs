//! Consumers as registered in the database. These settings decide about their keys, independent of a process's configuration file.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;
use sqlx::postgres::types::PgInterval;

/// A consumer as registered in the database.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KnownConsumer {
    /// Its name.
    pub consumer: String,
    /// The retention of its keys.
    #[serde(serialize_with = "serialize_seconds")]
    pub retention: Duration,
    /// Maximum age of a copy that may still arrive, according to the last worker that started.
    #[serde(serialize_with = "serialize_seconds")]
    pub redelivery_horizon: Duration,
    /// The fingerprint policy ([`oncely_core::fingerprint::FingerprintPolicy::name`]).
    pub fingerprint: String,
    /// The treatment of a key that comes back with another payload: `dead_letter` or `duplicate`.
    pub on_conflict: String,
    /// The time of the last change.
    pub changed_at: DateTime<Utc>,
    /// The user who made that change.
    pub changed_by: String,
}

fn serialize_seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// Converts microseconds from the database to a duration; negative ones become zero.
pub(super) fn to_duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

pub(super) fn to_interval(duration: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(duration.as_micros()).unwrap_or(i64::MAX) }
}

/// Lists the consumers with workers that have started on this database, by name.
///
/// # Errors
/// If the query fails.
pub async fn list_consumers(connection: &mut PgConnection) -> sqlx::Result<Vec<KnownConsumer>> {
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
            retention: to_duration(row.retention),
            redelivery_horizon: to_duration(row.redelivery_horizon),
            fingerprint: row.fingerprint,
            on_conflict: row.on_conflict,
            changed_at: row.changed_at,
            changed_by: row.changed_by,
        })
        .collect())
}

/// Lists the effective retention of these tenants' keys, by tenant and consumer, ignoring pauses (`oncely.tenant_retention`). Also for
/// auditors of a tenant, who may not read the user who changed it.
pub async fn list_retentions(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    tenants: &[String],
) -> sqlx::Result<BTreeMap<(String, String), Duration>> {
    let rows = sqlx::query!(
        r#"select tenant as "tenant!", consumer as "consumer!", (extract(epoch from retention) * 1000000)::bigint as "retention!"
        from oncely.list_retentions($1, $2)"#,
        now,
        tenants
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|row| ((row.tenant, row.consumer), to_duration(row.retention))).collect())
}

/// The period for which a consumer's keys are remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionRule {
    pub consumer: String,
    /// Keys decided before this time may be collected.
    pub before: DateTime<Utc>,
    /// Tenants with a retention of their own.
    pub(crate) tenants: Vec<String>,
    /// Whether it applies to these tenants only; otherwise to all others.
    pub is_own: bool,
    /// The time of the query.
    pub(crate) at: DateTime<Utc>,
}

/// Lists the retention limits of all known consumers at the current time: for each consumer one for all tenants, and one for each group
/// of tenants with equal retentions of their own. Time in which a consumer was paused does not count (`oncely.forgotten_before`), and a
/// former, longer retention applies as long as mirror entries written under it live (`oncely.effective_retention`,
/// `oncely.tenant_retention`).
pub async fn list_retention_rules(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
) -> sqlx::Result<Vec<RetentionRule>> {
    sqlx::query_as!(
        RetentionRule,
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

/// The settings that a worker registers at its start.
#[derive(Clone, Copy, Debug)]
pub struct Registration<'a> {
    pub consumer: &'a str,
    pub retention: Duration,
    pub redelivery_horizon: Duration,
    pub fingerprint: &'a str,
    /// `dead_letter` or `duplicate`.
    pub on_conflict: &'static str,
    pub worker: &'a str,
}

/// The registered settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredSettings {
    /// The retention of keys: the longest known.
    pub retention: Duration,
    /// Maximum age of a copy that may still arrive: the longest known.
    pub redelivery_horizon: Duration,
    /// The previous policy; `None` for a new consumer.
    pub former_fingerprint: Option<String>,
}

/// Registers a worker's settings; returns the effective ones. Never shortens a retention or a horizon.
pub async fn register_consumer(
    connection: &mut PgConnection,
    registration: Registration<'_>,
) -> sqlx::Result<RegisteredSettings> {
    let compares = Some((registration.fingerprint, registration.on_conflict));
    register(
        connection,
        registration.consumer,
        registration.retention,
        registration.redelivery_horizon,
        compares,
        registration.worker,
    )
    .await
}

/// Registers the retention that another service needs for the keys of a queue's consumer; its workers' settings stay unchanged.
pub async fn register_shared(
    connection: &mut PgConnection,
    consumer: &str,
    retention: Duration,
    worker: &str,
) -> sqlx::Result<RegisteredSettings> {
    // The shortest possible horizon.
    register(connection, consumer, retention, Duration::from_secs(1), None, worker).await
}

/// Registers the retention and the horizon of a consumer's keys (`oncely.register_consumer`); with `compares`, also the body comparison.
async fn register(
    connection: &mut PgConnection,
    consumer: &str,
    retention: Duration,
    redelivery_horizon: Duration,
    compares: Option<(&str, &str)>,
    worker: &str,
) -> sqlx::Result<RegisteredSettings> {
    let row = sqlx::query!(
        r#"select (extract(epoch from r.known_retention) * 1000000)::bigint as "retention!",
            (extract(epoch from r.known_redelivery_horizon) * 1000000)::bigint as "redelivery_horizon!", r.former_fingerprint
        from oncely.register_consumer($1, $2, $3, $4, $5, $6) as r"#,
        consumer,
        to_interval(retention),
        to_interval(redelivery_horizon),
        compares.map(|(fingerprint, _)| fingerprint),
        compares.map(|(_, on_conflict)| on_conflict),
        worker
    )
    .fetch_one(connection)
    .await?;
    Ok(RegisteredSettings {
        retention: to_duration(row.retention),
        redelivery_horizon: to_duration(row.redelivery_horizon),
        former_fingerprint: row.former_fingerprint,
    })
}

/// Registers the lifetime of a relay's mirror entries, before it writes any. Idempotent.
///
/// # Errors
/// If the login is not a relay (`42501`), or the query fails.
pub async fn register_mirror_ttl(connection: &mut PgConnection, ttl: Duration) -> sqlx::Result<()> {
    sqlx::query!("select oncely.register_mirror_ttl($1)", to_interval(ttl)).fetch_one(connection).await?;
    Ok(())
}

/// Reads the maximum lifetime of a mirror entry: the longest `mirror.ttl` of the relays; zero without a mirror.
///
/// # Errors
/// If the query fails.
pub async fn read_mirror_ttl(connection: &mut PgConnection) -> sqlx::Result<Duration> {
    let row = sqlx::query!(
        r#"select (extract(epoch from mirror_ttl) * 1000000)::bigint as "ttl!" from oncely.cell"#
    )
    .fetch_one(connection)
    .await?;
    Ok(to_duration(row.ttl))
}

/// Sets a retention on behalf of an operator, even a shorter one, and the horizon if it is given; recorded in the same transaction.
pub async fn set_retention(
    connection: &mut PgConnection,
    consumer: &str,
    retention: Duration,
    redelivery_horizon: Option<Duration>,
    user: &str,
    note: Option<&str>,
) -> sqlx::Result<()> {
    let horizon = redelivery_horizon.map(to_interval);
    sqlx::query!(
        "select oncely.set_retention($1, $2, $3, $4, $5)",
        consumer,
        to_interval(retention),
        horizon,
        user,
        note
    )
    .fetch_one(connection)
    .await?;
    Ok(())
}
