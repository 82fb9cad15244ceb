//! What consumers and relays did, in spans of time.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use super::consumers::interval;

/// What a consumer did in a span. Each number is 10^12 at most, in the table and as it is read, so that sums have room.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ConsumerStats {
    pub(crate) consumer: String,
    /// Beginning of the span.
    pub(crate) at: DateTime<Utc>,
    pub(crate) delivered: i64,
    pub(crate) completed: i64,
    pub(crate) refused: i64,
    pub(crate) duplicates: i64,
    pub(crate) retried: i64,
    pub(crate) postponed: i64,
    pub(crate) dead_lettered: i64,
    pub(crate) fallbacks: i64,
    pub(crate) outages: i64,
    /// By bucket ([`crate::durations::BOUNDS`]): how long deliveries took until they were settled.
    pub(crate) durations: Vec<i64>,
}

/// What relays did in a span, by target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RelayStats {
    /// `redis` or `rabbitmq`.
    pub(crate) target: String,
    /// Beginning of the span.
    pub(crate) at: DateTime<Utc>,
    pub(crate) relayed: i64,
    pub(crate) failed: i64,
    pub(crate) parked: i64,
    /// What waited at the end of the span, counted up to 10,000.
    pub(crate) records: i64,
    /// For how many seconds the oldest of them had waited.
    pub(crate) oldest_age: f64,
}

/// Writes what the consumers of a process did in the span of ten seconds that begins at `at`. Said again for the same span, the last word
/// counts, so a write whose reply is lost is repeated.
pub(crate) async fn record_stats(
    connection: &mut PgConnection,
    process: Uuid,
    at: DateTime<Utc>,
    consumers: &[ConsumerStats],
) -> Result<(), sqlx::Error> {
    let consumers = serde_json::to_value(consumers).unwrap_or_default();
    sqlx::query!("select oncely.record_stats($1, $2, $3)::text", process, at, consumers)
        .fetch_one(connection)
        .await?;
    Ok(())
}

/// Writes what a relay did in the span of ten seconds that begins at `at`.
pub(crate) async fn record_relay_stats(
    connection: &mut PgConnection,
    process: Uuid,
    at: DateTime<Utc>,
    targets: &[RelayStats],
) -> Result<(), sqlx::Error> {
    let targets = serde_json::to_value(targets).unwrap_or_default();
    sqlx::query!("select oncely.record_relay_stats($1, $2, $3)::text", process, at, targets)
        .fetch_one(connection)
        .await?;
    Ok(())
}

/// Makes minutes of spans older than two hours. Returns how many were made.
pub(crate) async fn roll_up_stats(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(r#"select oncely.roll_up_stats() as "minutes!""#).fetch_one(connection).await
}

/// Removes what is older than seven days. Returns how many rows.
pub(crate) async fn prune_stats(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(r#"select oncely.prune_stats() as "rows!""#).fetch_one(connection).await
}

/// What consumers did from `since` on, summed over processes in spans of `width` (ten seconds or more; a minute or more for what is older
/// than two hours), in order of time and name.
pub(crate) async fn consumer_stats(
    connection: &mut PgConnection,
    since: DateTime<Utc>,
    width: Duration,
) -> Result<Vec<ConsumerStats>, sqlx::Error> {
    sqlx::query_file_as!(ConsumerStats, "src/pg/stats_consumers.sql", since, interval(width))
        .fetch_all(connection)
        .await
}

/// What relays did from `since` on, in spans of `width`.
pub(crate) async fn relay_stats(
    connection: &mut PgConnection,
    since: DateTime<Utc>,
    width: Duration,
) -> Result<Vec<RelayStats>, sqlx::Error> {
    sqlx::query_as!(
        RelayStats,
        r#"select s.target, date_bin($2, s.at, timestamptz 'epoch') as "at!",
            least(sum(s.relayed), 1000000000000)::bigint as "relayed!",
            least(sum(s.failed), 1000000000000)::bigint as "failed!",
            least(sum(s.parked), 1000000000000)::bigint as "parked!",
            least(max(s.records), 1000000000000) as "records!",
            least(max(s.oldest_age), 10000000000) as "oldest_age!"
        from oncely.relay_stats as s
        where s.at >= $1
        group by 2, s.target
        order by 2, s.target"#,
        since,
        interval(width)
    )
    .fetch_all(connection)
    .await
}
