//! What is asked, and of whom: each server on a connection of its own that is kept, and none waits for another.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use lapin::Connection;

use crate::amqp::{Depth, connect, depth};
use crate::config::Config;
use crate::exit;
use crate::mirror::Mirror;
use crate::overview::Overview;
use crate::pg::{self, Session};
use crate::preflight::{Unreachable, open_session};
use crate::status::Missing;

/// A server that takes longer than this for an answer is as good as away.
const LIMIT: Duration = Duration::from_secs(4);

/// What PostgreSQL knows.
#[derive(Clone, Debug)]
pub(super) struct Database {
    pub(super) cell: String,
    pub(super) overview: Overview,
    /// Dead letters that wait, by consumer.
    pub(super) letters: BTreeMap<String, i64>,
    /// How long a short question took.
    pub(super) latency: Duration,
}

/// What is in queues and who takes from them, by queue; `None` where there is no such queue.
pub(super) type Depths = BTreeMap<String, Option<Depth>>;

/// Answers of one time; a server's is its error where it does not answer.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// By this machine's clock.
    pub(super) at: DateTime<Utc>,
    pub(super) postgres: Result<Database, Missing>,
    /// Is a broker configured?
    pub(super) has_broker: bool,
    pub(super) rabbitmq: Result<Depths, String>,
    /// `None` where there is no mirror.
    pub(super) redis: Option<Result<(), String>>,
}

/// The servers, with their connections.
pub(super) struct Servers {
    postgres: Postgres,
    rabbitmq: RabbitMq,
    config: Config,
}

struct Postgres {
    config: Config,
    session: Option<Session>,
}

struct RabbitMq {
    config: Config,
    connection: Option<Connection>,
}

impl Servers {
    pub(super) fn new(config: Config) -> Self {
        Self {
            postgres: Postgres { config: config.clone(), session: None },
            rabbitmq: RabbitMq { config: config.clone(), connection: None },
            config,
        }
    }

    /// Asks all of them at once. Takes no longer than the limit of one.
    ///
    /// # Errors
    /// When the database does not fit the configuration. A server that does not answer is in the answers.
    pub(super) async fn ask(&mut self) -> anyhow::Result<Asked> {
        let (postgres, rabbitmq, redis) =
            tokio::join!(limited(self.postgres.ask()), limited(self.rabbitmq.ask()), redis(&self.config));
        let postgres = match postgres {
            Ok(database) => Ok(database),
            Err(error) => Err(Missing::of(error)?),
        };
        let told = |error: anyhow::Error| exit::told(&error);
        Ok(Asked {
            at: Utc::now(),
            postgres,
            has_broker: self.config.has_broker,
            rabbitmq: rabbitmq.map_err(told),
            redis: redis.map(|answer| answer.map_err(told)),
        })
    }
}

/// Waits no longer than the limit. What is asked holds its connection, so that it goes with the question.
async fn limited<T>(asked: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    match tokio::time::timeout(LIMIT, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(Unreachable(format!("no answer within {LIMIT:?}")).into()),
    }
}

impl Postgres {
    async fn ask(&mut self) -> anyhow::Result<Database> {
        let mut session = match self.session.take() {
            Some(open) => open,
            None => open_session(&self.config).await?,
        };
        let connection = &mut session.connection;
        let asked = Instant::now();
        let now = pg::database_time(connection).await?;
        let latency = asked.elapsed();
        let names = self.config.consumer_names();
        let overview = Overview::take(connection, Some(&names), now).await?;
        let letters = pg::waiting_letters(connection).await?;
        let letters = letters.into_iter().map(|letters| (letters.consumer, letters.waiting)).collect();
        let cell = session.cell.name.clone();
        self.session = Some(session);
        Ok(Database { cell, overview, letters, latency })
    }
}

impl RabbitMq {
    async fn ask(&mut self) -> anyhow::Result<Depths> {
        if !self.config.has_broker {
            return Ok(Depths::new());
        }
        let settings = &self.config.rabbitmq;
        let connection = match self.connection.take() {
            Some(open) => open,
            None => connect(settings, "oncely top").await?,
        };
        let mut depths = Depths::new();
        for queue in self.config.consumers.iter().flat_map(|consumer| &consumer.queues) {
            let found = depth(&connection, settings.timeout, queue).await?;
            depths.insert(queue.clone(), found);
        }
        self.connection = Some(connection);
        Ok(depths)
    }
}

async fn redis(config: &Config) -> Option<anyhow::Result<()>> {
    let settings = config.mirror.as_ref()?;
    let asked = async { Ok(Mirror::new(settings)?.ping().await?) };
    Some(limited(asked).await)
}
