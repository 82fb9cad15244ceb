//! Queries of the servers: each on a kept connection of its own, and none waits for another.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use lapin::Connection;

use oncely_amqp::{Depth, connect, depth};
use oncely_config::Config;
use oncely_mirror::Mirror;
use oncely_ops::exit;
use oncely_ops::overview::Overview;
use oncely_ops::status::ServerFailure;
use oncely_postgres::{self as pg, Session};
use oncely_process::preflight::{PostgresUnreachable, open_session};

/// A server that takes longer than this to answer counts as unreachable.
const LIMIT: Duration = Duration::from_secs(4);

/// Facts from PostgreSQL.
#[derive(Clone, Debug)]
pub(super) struct DatabaseAnswer {
    pub cell: String,
    pub(super) overview: Overview,
    /// Waiting dead letters, by consumer.
    pub(super) letters: BTreeMap<String, i64>,
    /// Latency of a short query.
    pub(super) latency: Duration,
}

/// Depths and subscriptions by queue; `None` if the queue does not exist.
pub(super) type Depths = BTreeMap<String, Option<Depth>>;

/// Answers of one time; a server that does not answer has its error.
#[derive(Clone, Debug)]
pub(super) struct ServerAnswers {
    /// By this machine's clock.
    pub(super) at: DateTime<Utc>,
    pub(super) postgres: Result<DatabaseAnswer, ServerFailure>,
    /// Whether a broker is configured.
    pub(super) has_broker: bool,
    pub(super) rabbitmq: Result<Depths, String>,
    /// `None` if no mirror is configured.
    pub(super) redis: Option<Result<(), String>>,
}

/// The servers, with their connections.
pub(super) struct Servers {
    postgres: PostgresConnection,
    rabbitmq: RabbitMqConnection,
    config: Config,
}

struct PostgresConnection {
    config: Config,
    session: Option<Session>,
}

struct RabbitMqConnection {
    config: Config,
    connection: Option<Connection>,
}

impl Servers {
    pub(super) fn new(config: Config) -> Self {
        Self {
            postgres: PostgresConnection { config: config.clone(), session: None },
            rabbitmq: RabbitMqConnection { config: config.clone(), connection: None },
            config,
        }
    }

    /// Queries all servers at once. Takes no longer than the limit of one.
    ///
    /// # Errors
    /// If the database does not match the configuration. A server that does not answer is part of the result.
    pub(super) async fn ask(&mut self) -> anyhow::Result<ServerAnswers> {
        let (postgres, rabbitmq, redis) =
            tokio::join!(limited(self.postgres.ask()), limited(self.rabbitmq.ask()), redis(&self.config));
        let postgres = match postgres {
            Ok(database) => Ok(database),
            Err(error) => Err(ServerFailure::from_error(error)?),
        };
        let told = |error: anyhow::Error| exit::error_chain(&error);
        Ok(ServerAnswers {
            at: Utc::now(),
            postgres,
            has_broker: self.config.has_broker,
            rabbitmq: rabbitmq.map_err(told),
            redis: redis.map(|answer| answer.map_err(told)),
        })
    }
}

/// Awaits a query up to the limit. The query holds its connection, which is dropped with it.
async fn limited<T>(asked: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    match tokio::time::timeout(LIMIT, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(PostgresUnreachable(format!("no answer within {LIMIT:?}")).into()),
    }
}

impl PostgresConnection {
    async fn ask(&mut self) -> anyhow::Result<DatabaseAnswer> {
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
        Ok(DatabaseAnswer { cell, overview, letters, latency })
    }
}

impl RabbitMqConnection {
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
