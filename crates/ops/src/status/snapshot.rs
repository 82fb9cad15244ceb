//! The state of the servers at one time.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::failure::ServerFailure;
use super::servers::Servers;
use crate::overview::{Overview, ProcessOverview, QueueState};
use oncely_config::Config;
use oncely_postgres::{
    self as pg, ConsumerKeyCounts, EventStatus, FailingKey, HeldCount, MirrorQueueStatus, Pause,
    QueueLetters, RecentOutcome, Session, TableStatistics, TenantOverQuota,
};
use oncely_process::preflight::open_session;
use oncely_worker::worker::ConsumerReport;

/// Time range in which outcomes are counted.
const OUTCOME_RANGE: chrono::Duration = chrono::Duration::minutes(5);
/// Time after which a dead letter's copy is in its queue.
const ARRIVAL_TIME: chrono::Duration = chrono::Duration::minutes(1);
/// Maximum number of failing keys that are listed for a consumer, and of tenants over their quota.
const MAX_EXAMPLES: i64 = 3;

/// The state of the servers at one time; a server that does not answer has its error.
#[derive(Clone, Debug)]
pub struct StatusSnapshot<D = DatabaseSnapshot> {
    pub postgres: Result<D, ServerFailure>,
    /// Whether a broker is configured.
    pub has_broker: bool,
    pub rabbitmq: Result<Vec<QueueState>, String>,
    /// `None` if no mirror is configured.
    pub redis: Option<Result<(), ServerFailure>>,
}

/// Facts from PostgreSQL.
#[derive(Clone, Debug, Serialize)]
pub struct DatabaseSnapshot {
    pub now: DateTime<Utc>,
    pub cell: String,
    pub epoch: String,
    /// It accepts no writes, though it is not a standby (`default_transaction_read_only`).
    pub read_only: bool,
    pub mirror_queue: MirrorQueueStatus,
    pub events: EventStatus,
    pub tables: TableStatistics,
    pub recent: Vec<RecentOutcome>,
    pub consumers: Vec<ConsumerKeyCounts>,
    pub failing: Vec<FailingKey>,
    pub(crate) letters: Vec<QueueLetters>,
    /// Tenants with open dead letters that are not stored.
    pub(crate) over_quota: Vec<TenantOverQuota>,
    #[serde(skip)]
    pub overview: Overview,
}

impl<D> StatusSnapshot<D> {
    /// Queries all servers at once; `database` queries PostgreSQL.
    ///
    /// # Errors
    /// If the database does not match the configuration. A server that does not answer is part of the snapshot.
    pub async fn query_servers(
        config: &Config,
        servers: &Servers,
        database: impl Future<Output = anyhow::Result<D>>,
    ) -> anyhow::Result<Self> {
        let (postgres, rabbitmq, redis) =
            tokio::join!(database, servers.query_queues(config), servers.check_redis());
        let postgres = match postgres {
            Ok(database) => Ok(database),
            Err(error) => Err(ServerFailure::from_error(error)?),
        };
        Ok(Self { postgres, has_broker: config.has_broker, rabbitmq, redis })
    }

    /// Returns the queues of a consumer, as far as RabbitMQ answers.
    pub fn queues(&self, consumer: &str) -> Vec<&QueueState> {
        let all = self.rabbitmq.as_deref().unwrap_or_default();
        all.iter().filter(|queue| queue.consumer == consumer).collect()
    }
}

impl StatusSnapshot {
    /// Queries all servers, over connections that are closed afterwards.
    ///
    /// # Errors
    /// If the database does not match the configuration. A server that does not answer is part of the snapshot.
    pub async fn take(config: &Config) -> anyhow::Result<Self> {
        // The configured limits of the servers apply.
        let servers = Servers::new(config, "oncely status", Duration::MAX);
        let snapshot = Self::query_servers(config, &servers, query_database(config)).await;
        servers.close().await;
        snapshot
    }

    /// Returns the live workers of a consumer, with their reports about it.
    pub fn workers<'a>(
        &'a self,
        consumer: &'a str,
    ) -> impl Iterator<Item = (&'a ProcessOverview, &'a ConsumerReport)> {
        let processes = self.postgres.as_ref().map_or(&[][..], |database| &database.overview.processes);
        let living = processes.iter().filter(|process| !process.silent);
        living.flat_map(move |process| {
            process
                .reports
                .iter()
                .filter(move |report| report.consumer == consumer)
                .map(move |report| (process, report))
        })
    }

    /// Returns the deliveries of a queue that workers hold; `None` if no live worker reports it.
    pub fn unacknowledged_deliveries(&self, consumer: &str, queue: &str) -> Option<u64> {
        self.workers(consumer)
            .filter_map(|(_, report)| report.condition.unacknowledged.get(queue))
            .fold(None, |sum: Option<u64>, count| Some(sum.unwrap_or(0).saturating_add(*count)))
    }

    /// Returns the time at which the last message of a consumer took effect: from the keys, or from a worker, which may remember longer.
    /// `None` if neither knows one.
    pub fn completed_at(&self, consumer: &str) -> Option<DateTime<Utc>> {
        let states = self.postgres.as_ref().map_or(&[][..], |database| &database.consumers);
        let from_keys =
            states.iter().filter(|state| state.consumer == consumer).filter_map(|s| s.completed_at);
        let from_workers = self.workers(consumer).filter_map(|(_, report)| report.condition.completed_at);
        from_keys.chain(from_workers).max()
    }
}

/// Queries PostgreSQL on a session that is closed afterwards.
async fn query_database(config: &Config) -> anyhow::Result<DatabaseSnapshot> {
    let mut session = open_session(config).await?;
    let query = async {
        pg::prefer_indexes(&mut session.connection).await?;
        let since = session.clock.now() - OUTCOME_RANGE;
        let recent = pg::count_recent_outcomes(&mut session.connection, since).await?;
        DatabaseSnapshot::read(config, &mut session, recent).await
    };
    let query = query.await;
    session.close().await;
    Ok(query?)
}

impl DatabaseSnapshot {
    /// Queries everything except the outcomes of the last five minutes, `recent`.
    ///
    /// # Errors
    /// If a query fails.
    pub async fn read(
        config: &Config,
        session: &mut Session,
        recent: Vec<RecentOutcome>,
    ) -> Result<Self, sqlx::Error> {
        let now = session.clock.now();
        let names: Vec<String> = config.consumers.iter().map(|c| c.name.as_str().to_owned()).collect();
        let connection = &mut session.connection;
        Ok(Self {
            now,
            cell: session.cell.name.clone(),
            epoch: session.cell.epoch.clone(),
            read_only: pg::is_read_only(connection).await?,
            mirror_queue: pg::read_mirror_queue_status(connection).await?,
            events: pg::read_event_status(connection, now).await?,
            tables: pg::read_table_statistics(connection).await?,
            recent,
            consumers: pg::read_consumer_key_counts(connection, &names).await?,
            failing: pg::list_failing_keys(connection, &names, MAX_EXAMPLES).await?,
            letters: pg::count_queue_letters(connection, now - ARRIVAL_TIME).await?,
            over_quota: pg::list_tenants_over_quota(connection, MAX_EXAMPLES).await?,
            overview: Overview::read(connection, Some(&names), now).await?,
        })
    }

    /// Returns the number of open dead letters of a queue, which all screens show as `DEAD`.
    pub fn dead_letters(&self, queue: &str) -> u64 {
        let letters = self.letters.iter().find(|letters| letters.queue == queue);
        letters.map_or(0, |letters| u64::try_from(letters.waiting).unwrap_or_default())
    }

    /// Returns the pause of a consumer; `None` if it is not paused.
    pub fn pause(&self, consumer: &str) -> Option<&Pause> {
        self.overview.pauses.iter().find(|pause| pause.consumer == consumer)
    }

    /// Returns the numbers of keys that runs of a consumer hold by leases; `None` if there are no such keys.
    pub fn lease_counts(&self, consumer: &str) -> Option<&HeldCount> {
        self.overview.leases.iter().find(|held| held.consumer == consumer)
    }
}
