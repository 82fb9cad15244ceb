//! What is asked of the servers: all at once, each within its own time.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::amqp::{AmqpError, Topology, connect, depth};
use crate::config::{Config, Consumer, RabbitSettings};
use crate::exit;
use crate::mirror::Mirror;
use crate::overview::{Seen, seen_processes};
use crate::pg::{
    self, ConsumerState, EventStatus, FailingKey, HeldCount, MirrorQueueStatus, OverQuota, Pause,
    QueueLetters, RecentOutcome, Session, TableStatistics,
};
use crate::preflight::{IN_CLUSTER, open_session};
use crate::worker::Report;

/// How far back outcomes are counted.
const RECENT: chrono::Duration = chrono::Duration::minutes(5);
/// By then a dead letter's copy is in its queue.
const ARRIVED: chrono::Duration = chrono::Duration::minutes(1);
/// How many failing keys of a consumer are named, and tenants over their quota.
const NAMED: i64 = 3;

/// Why a server is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) text: String,
    /// It does not answer. Otherwise it does, and a question to it failed.
    pub(crate) is_away: bool,
}

impl Missing {
    /// Says why a server is not used.
    ///
    /// # Errors
    /// With the error itself, where the database does not fit the configuration.
    pub(crate) fn of(error: anyhow::Error) -> anyhow::Result<Self> {
        match exit::code(&error) {
            exit::CONFIG => Err(error),
            code => Ok(Self { text: exit::told(&error), is_away: code == exit::UNREACHABLE }),
        }
    }
}

/// Everything that is known at one time; a server's part is its error where it does not answer.
pub(crate) struct Picture {
    pub(crate) postgres: Result<Database, Missing>,
    /// Is one configured?
    pub(crate) has_broker: bool,
    pub(crate) rabbitmq: Result<Vec<QueueState>, String>,
    /// `None` where there is no mirror.
    pub(crate) redis: Option<Result<(), Missing>>,
}

/// What PostgreSQL knows.
#[derive(Serialize)]
pub(crate) struct Database {
    pub(crate) now: DateTime<Utc>,
    pub(crate) cell: String,
    pub(crate) epoch: String,
    /// It takes no writes, though it is no standby (`default_transaction_read_only`).
    pub(crate) read_only: bool,
    pub(crate) mirror_queue: MirrorQueueStatus,
    pub(crate) events: EventStatus,
    pub(crate) tables: TableStatistics,
    pub(crate) recent: Vec<RecentOutcome>,
    pub(crate) consumers: Vec<ConsumerState>,
    pub(crate) failing: Vec<FailingKey>,
    pub(crate) letters: Vec<QueueLetters>,
    /// Tenants of which open dead letters are not stored.
    pub(crate) over_quota: Vec<OverQuota>,
    pub(crate) pauses: Vec<Pause>,
    /// What runs hold by leases, by consumer.
    pub(crate) leases: Vec<HeldCount>,
    #[serde(skip)]
    pub(crate) processes: Vec<Seen>,
}

/// A queue with those around it, as the broker knows them.
pub(crate) struct QueueState {
    pub(crate) consumer: String,
    pub(crate) queue: String,
    pub(crate) ready: Option<u32>,
    pub(crate) retrying: u64,
    pub(crate) dead: Option<u32>,
    pub(crate) subscriptions: Option<u32>,
    pub(crate) missing: Vec<String>,
}

impl Picture {
    /// Asks.
    ///
    /// # Errors
    /// When the database does not fit the configuration. A server that does not answer is in the picture.
    pub(crate) async fn take(config: &Config) -> anyhow::Result<Self> {
        let (postgres, rabbitmq, redis) = tokio::join!(database(config), queues(config), redis(config));
        let postgres = match postgres {
            Ok(database) => Ok(database),
            Err(error) => Err(Missing::of(error)?),
        };
        let rabbitmq = rabbitmq.map_err(|error| error.to_string());
        Ok(Self { postgres, has_broker: config.has_broker, rabbitmq, redis })
    }

    /// Workers that live, with what they say of a consumer.
    pub(crate) fn workers<'a>(&'a self, consumer: &'a str) -> impl Iterator<Item = (&'a Seen, &'a Report)> {
        let processes = self.postgres.as_ref().map_or(&[][..], |database| &database.processes);
        let living = processes.iter().filter(|seen| !seen.silent);
        living.flat_map(move |seen| {
            seen.reports
                .iter()
                .filter(move |report| report.consumer == consumer)
                .map(move |report| (seen, report))
        })
    }

    /// Deliveries of a queue that are in workers' hands; `None` where no living worker says so.
    pub(crate) fn unacknowledged(&self, consumer: &str, queue: &str) -> Option<u64> {
        self.workers(consumer)
            .filter_map(|(_, report)| report.condition.unacknowledged.get(queue))
            .fold(None, |sum: Option<u64>, count| Some(sum.unwrap_or(0).saturating_add(*count)))
    }

    /// When a message of this consumer took effect last: by the keys, or by a worker that remembers longer.
    pub(crate) fn completed_at(&self, consumer: &str) -> Option<DateTime<Utc>> {
        let states = self.postgres.as_ref().map_or(&[][..], |database| &database.consumers);
        let stored = states.iter().filter(|state| state.consumer == consumer).filter_map(|s| s.completed_at);
        let told = self.workers(consumer).filter_map(|(_, report)| report.condition.completed_at);
        stored.chain(told).max()
    }
}

async fn database(config: &Config) -> anyhow::Result<Database> {
    let mut session = open_session(config).await?;
    let asked = async {
        pg::read_by_index(&mut session.connection).await?;
        let since = session.clock.now() - RECENT;
        let recent = pg::recent_outcomes(&mut session.connection, since).await?;
        Database::ask(config, &mut session, recent).await
    };
    let asked = asked.await;
    session.close().await;
    Ok(asked?)
}

impl Database {
    /// Asks, all but what was decided lately: `recent`, of the last five minutes.
    ///
    /// # Errors
    /// When a query fails.
    pub(crate) async fn ask(
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

    /// Dead letters of a queue that are open: what `DEAD` means everywhere.
    pub(crate) fn dead(&self, queue: &str) -> u64 {
        let letters = self.letters.iter().find(|letters| letters.queue == queue);
        letters.map_or(0, |letters| u64::try_from(letters.waiting).unwrap_or_default())
    }

    /// The pause of a consumer, where it has one.
    pub(crate) fn pause(&self, consumer: &str) -> Option<&Pause> {
        self.pauses.iter().find(|pause| pause.consumer == consumer)
    }

    /// What is held of a consumer by leases, where something is.
    pub(crate) fn held(&self, consumer: &str) -> Option<&HeldCount> {
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

/// All queues of the configuration, as the broker knows them.
///
/// # Errors
/// When the broker does not answer.
pub(crate) async fn queue_states(
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
    consumer: &Consumer,
    queue: &str,
) -> Result<QueueState, AmqpError> {
    let dead = Topology::dead_letter_queue(queue);
    let mut names = vec![queue.to_owned()];
    // Around a queue that is only observed there is nothing.
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
        // Who only observes has no dead letters, and needs no queue for them.
        dead: dead.map(|depth| depth.ready).or(consumer.observes().then_some(0)),
        subscriptions: work.map(|depth| depth.subscriptions),
        missing,
    })
}

async fn redis(config: &Config) -> Option<Result<(), Missing>> {
    let settings = config.mirror.as_ref()?;
    let answer = match Mirror::new(settings) {
        Ok(mirror) => match mirror.ping().await {
            Ok(()) if mirror.facts().await.is_ok_and(|facts| facts.is_cluster) => {
                return Some(Err(Missing { text: IN_CLUSTER.to_owned(), is_away: false }));
            }
            answer => answer,
        },
        Err(error) => Err(error),
    };
    Some(answer.map_err(|error| Missing { text: error.to_string(), is_away: true }))
}
