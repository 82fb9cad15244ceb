//! Queries of the servers: all at once, each with a time limit of its own.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::exit;
use crate::overview::{ProcessOverview, seen_processes};
use oncely_amqp::{AmqpError, Topology, connect, depth};
use oncely_config::{Config, ConsumerSettings, RabbitSettings};
use oncely_doctor::IN_CLUSTER;
use oncely_mirror::Mirror;
use oncely_postgres::{
    self as pg, ConsumerKeyCounts, EventStatus, FailingKey, HeldCount, MirrorQueueStatus, Pause,
    QueueLetters, RecentOutcome, Session, TableStatistics, TenantOverQuota,
};
use oncely_process::preflight::open_session;
use oncely_worker::worker::ConsumerReport;

/// Time range in which outcomes are counted.
const RECENT: chrono::Duration = chrono::Duration::minutes(5);
/// Time after which a dead letter's copy is in its queue.
const ARRIVED: chrono::Duration = chrono::Duration::minutes(1);
/// Maximum number of failing keys of a consumer that are named, and of tenants over their quota.
const NAMED: i64 = 3;

/// The reason why a server is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFailure {
    pub text: String,
    /// Whether it does not answer; otherwise a query failed.
    pub is_away: bool,
}

impl ServerFailure {
    /// Returns the reason why a server is not used.
    ///
    /// # Errors
    /// The error itself, if the database does not match the configuration.
    pub fn from_error(error: anyhow::Error) -> anyhow::Result<Self> {
        match exit::code(&error) {
            exit::CONFIG => Err(error),
            code => Ok(Self { text: exit::error_chain(&error), is_away: code == exit::UNREACHABLE }),
        }
    }
}

/// The state of the servers at one time; a server that does not answer has its error.
pub struct StatusSnapshot {
    pub postgres: Result<DatabaseSnapshot, ServerFailure>,
    /// Whether a broker is configured.
    pub has_broker: bool,
    pub rabbitmq: Result<Vec<QueueState>, String>,
    /// `None` if no mirror is configured.
    pub redis: Option<Result<(), ServerFailure>>,
}

/// Facts from PostgreSQL.
#[derive(Serialize)]
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
    pub pauses: Vec<Pause>,
    /// Keys that runs hold by leases, by consumer.
    pub leases: Vec<HeldCount>,
    #[serde(skip)]
    pub processes: Vec<ProcessOverview>,
}

/// A queue with its dead-letter and retry queues, from the broker.
pub struct QueueState {
    pub consumer: String,
    pub queue: String,
    pub ready: Option<u32>,
    pub retrying: u64,
    pub dead: Option<u32>,
    pub subscriptions: Option<u32>,
    pub missing: Vec<String>,
}

impl StatusSnapshot {
    /// Queries all servers.
    ///
    /// # Errors
    /// If the database does not match the configuration. A server that does not answer is part of the picture.
    pub async fn take(config: &Config) -> anyhow::Result<Self> {
        let (postgres, rabbitmq, redis) = tokio::join!(database(config), queues(config), redis(config));
        let postgres = match postgres {
            Ok(database) => Ok(database),
            Err(error) => Err(ServerFailure::from_error(error)?),
        };
        let rabbitmq = rabbitmq.map_err(|error| error.to_string());
        Ok(Self { postgres, has_broker: config.has_broker, rabbitmq, redis })
    }

    /// Returns live workers with their reports about a consumer.
    pub fn workers<'a>(
        &'a self,
        consumer: &'a str,
    ) -> impl Iterator<Item = (&'a ProcessOverview, &'a ConsumerReport)> {
        let processes = self.postgres.as_ref().map_or(&[][..], |database| &database.processes);
        let living = processes.iter().filter(|seen| !seen.silent);
        living.flat_map(move |seen| {
            seen.reports
                .iter()
                .filter(move |report| report.consumer == consumer)
                .map(move |report| (seen, report))
        })
    }

    /// Returns the deliveries of a queue that workers hold; `None` if no live worker reports it.
    pub fn unacknowledged(&self, consumer: &str, queue: &str) -> Option<u64> {
        self.workers(consumer)
            .filter_map(|(_, report)| report.condition.unacknowledged.get(queue))
            .fold(None, |sum: Option<u64>, count| Some(sum.unwrap_or(0).saturating_add(*count)))
    }

    /// Returns when the last message of this consumer took effect: from the keys, or from a worker, which may remember longer.
    pub fn completed_at(&self, consumer: &str) -> Option<DateTime<Utc>> {
        let states = self.postgres.as_ref().map_or(&[][..], |database| &database.consumers);
        let stored = states.iter().filter(|state| state.consumer == consumer).filter_map(|s| s.completed_at);
        let told = self.workers(consumer).filter_map(|(_, report)| report.condition.completed_at);
        stored.chain(told).max()
    }
}

async fn database(config: &Config) -> anyhow::Result<DatabaseSnapshot> {
    let mut session = open_session(config).await?;
    let asked = async {
        pg::read_by_index(&mut session.connection).await?;
        let since = session.clock.now() - RECENT;
        let recent = pg::recent_outcomes(&mut session.connection, since).await?;
        DatabaseSnapshot::ask(config, &mut session, recent).await
    };
    let asked = asked.await;
    session.close().await;
    Ok(asked?)
}

impl DatabaseSnapshot {
    /// Queries everything except the outcomes of the last five minutes, `recent`.
    ///
    /// # Errors
    /// If a query fails.
    pub async fn ask(
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
            mirror_queue: pg::mirror_queue_status(connection).await?,
            events: pg::event_status(connection, now).await?,
            tables: pg::table_statistics(connection).await?,
            recent,
            consumers: pg::consumer_states(connection, &names).await?,
            failing: pg::failing_keys(connection, &names, NAMED).await?,
            letters: pg::queue_letters(connection, now - ARRIVED).await?,
            over_quota: pg::over_quota(connection, NAMED).await?,
            pauses: pg::pauses(connection).await?,
            leases: pg::held_counts(connection, now).await?,
            processes: seen_processes(connection, now).await?,
        })
    }

    /// Returns the number of open dead letters of a queue: the meaning of `DEAD` everywhere.
    pub fn dead(&self, queue: &str) -> u64 {
        let letters = self.letters.iter().find(|letters| letters.queue == queue);
        letters.map_or(0, |letters| u64::try_from(letters.waiting).unwrap_or_default())
    }

    /// Returns the pause of a consumer, if it is paused.
    pub fn pause(&self, consumer: &str) -> Option<&Pause> {
        self.pauses.iter().find(|pause| pause.consumer == consumer)
    }

    /// Returns the leases of a consumer, if it has any.
    pub fn held(&self, consumer: &str) -> Option<&HeldCount> {
        self.leases.iter().find(|held| held.consumer == consumer)
    }
}

async fn queues(config: &Config) -> Result<Vec<QueueState>, AmqpError> {
    if !config.has_broker {
        return Ok(Vec::new());
    }
    let connection = connect(&config.rabbitmq, "oncely status").await?;
    let states = queue_states(&connection, config).await?;
    if let Err(error) = connection.close(200, "done".into()).await {
        tracing::debug!(error = %error, "closing a connection to RabbitMQ failed");
    }
    Ok(states)
}

/// Returns the state of all configured queues.
///
/// # Errors
/// If the broker does not answer.
pub async fn queue_states(
    connection: &lapin::Connection,
    config: &Config,
) -> Result<Vec<QueueState>, AmqpError> {
    let mut states = Vec::new();
    for consumer in &config.consumers {
        for queue in &consumer.queues {
            states.push(queue_state(connection, &config.rabbitmq, consumer, queue).await?);
        }
    }
    Ok(states)
}

async fn queue_state(
    connection: &lapin::Connection,
    settings: &RabbitSettings,
    consumer: &ConsumerSettings,
    queue: &str,
) -> Result<QueueState, AmqpError> {
    let dead = Topology::dead_letter_queue(queue);
    let mut names = vec![queue.to_owned()];
    // An observed queue has no others around it.
    if !consumer.observes() {
        names.push(dead.clone());
        names.extend(consumer.retry.delays.iter().map(|delay| Topology::retry_queue(queue, *delay)));
    }
    names.dedup();
    let mut found = BTreeMap::new();
    let mut missing = Vec::new();
    for name in names {
        match depth(connection, settings.timeout, &name).await? {
            Some(depth) => {
                found.insert(name, depth);
            }
            None => missing.push(name),
        }
    }
    let work = found.remove(queue);
    let dead = found.remove(&dead);
    Ok(QueueState {
        consumer: consumer.name.as_str().to_owned(),
        queue: queue.to_owned(),
        ready: work.map(|depth| depth.ready),
        retrying: found.values().map(|depth| u64::from(depth.ready)).sum(),
        // An observer has no dead letters, and needs no queue for them.
        dead: dead.map(|depth| depth.ready).or(consumer.observes().then_some(0)),
        subscriptions: work.map(|depth| depth.subscriptions),
        missing,
    })
}

async fn redis(config: &Config) -> Option<Result<(), ServerFailure>> {
    let settings = config.mirror.as_ref()?;
    let answer = match Mirror::new(settings) {
        Ok(mirror) => match mirror.ping().await {
            Ok(()) if mirror.facts().await.is_ok_and(|facts| facts.is_cluster) => {
                return Some(Err(ServerFailure { text: IN_CLUSTER.to_owned(), is_away: false }));
            }
            answer => answer,
        },
        Err(error) => Err(error),
    };
    Some(answer.map_err(|error| ServerFailure { text: error.to_string(), is_away: true }))
}
