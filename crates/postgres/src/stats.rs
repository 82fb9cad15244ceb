//! Statistics of consumers and relays, in spans of time.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use super::consumers::to_interval;

/// A consumer's numbers in a span. Each is at most 10^12, in the table and when read, so that sums don't overflow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConsumerStats {
    pub consumer: String,
    /// The start of the span.
    pub at: DateTime<Utc>,
    pub delivered: i64,
    pub completed: i64,
    pub refused: i64,
    pub duplicates: i64,
    pub retried: i64,
    pub postponed: i64,
    pub dead_lettered: i64,
    pub fallbacks: i64,
    pub outages: i64,
    /// Number of deliveries by time until they were settled, per bucket ([`oncely_core::durations::BUCKET_BOUNDS`]).
    pub durations: Vec<i64>,
}

/// A relay's numbers in a span, by target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RelayStats {
    /// `redis` or `rabbitmq`.
    pub target: String,
    /// The start of the span.
    pub at: DateTime<Utc>,
    pub relayed: i64,
    pub failed: i64,
    pub parked: i64,
    /// Number of waiting records at the end of the span, counted up to 10,000.
    pub records: i64,
    /// Waiting time of the oldest of them, in seconds.
    pub oldest_age: f64,
}

/// Writes the numbers of a process's consumers in the span of ten seconds that begins at `at`. The last write for a span counts, so one
/// with a lost reply is retried.
pub async fn record_stats(
    connection: &mut PgConnection,
    process: Uuid,
    at: DateTime<Utc>,
    consumers: &[ConsumerStats],
) -> sqlx::Result<()> {
    let consumers = serde_json::to_value(consumers).unwrap_or_default();
    sqlx::query!("select oncely.record_stats($1, $2, $3)::text", process, at, consumers)
        .fetch_one(connection)
        .await?;
    Ok(())
}

/// Writes a relay's numbers in the span of ten seconds that begins at `at`.
pub async fn record_relay_stats(
    connection: &mut PgConnection,
    process: Uuid,
    at: DateTime<Utc>,
    targets: &[RelayStats],
) -> sqlx::Result<()> {
    let targets = serde_json::to_value(targets).unwrap_or_default();
    sqlx::query!("select oncely.record_relay_stats($1, $2, $3)::text", process, at, targets)
        .fetch_one(connection)
        .await?;
    Ok(())
}

/// Merges spans older than two hours into minutes. Returns the number of minutes made.
pub async fn roll_up_stats(connection: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar!(r#"select oncely.roll_up_stats() as "minutes!""#).fetch_one(connection).await
}

/// Removes spans older than seven days. Returns the number of rows removed.
pub async fn prune_stats(connection: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar!(r#"select oncely.prune_stats() as "rows!""#).fetch_one(connection).await
}

/// Reads consumers' numbers from `since` on, summed over processes in spans of `width` (ten seconds or more; a minute or more for spans
/// older than two hours), in order of time and name.
pub async fn read_consumer_stats(
    connection: &mut PgConnection,
    since: DateTime<Utc>,
    width: Duration,
) -> sqlx::Result<Vec<ConsumerStats>> {
    sqlx::query_file_as!(ConsumerStats, "src/stats_consumers.sql", since, to_interval(width))
        .fetch_all(connection)
        .await
}

/// Reads relays' numbers from `since` on, in spans of `width`.
pub async fn read_relay_stats(
    connection: &mut PgConnection,
    since: DateTime<Utc>,
    width: Duration,
) -> sqlx::Result<Vec<RelayStats>> {
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
        to_interval(width)
    )
    .fetch_all(connection)
    .await
}
