//! Queries of the servers: each on a kept connection of its own, and none waits for another.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use oncely_config::Config;
use oncely_ops::overview::Overview;
use oncely_ops::status::{Servers, StatusSnapshot};
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

/// Answers of one time; a server that does not answer has its error.
#[derive(Clone, Debug)]
pub(super) struct ServerAnswers {
    /// By this machine's clock.
    pub(super) at: DateTime<Utc>,
    pub(super) snapshot: StatusSnapshot<DatabaseAnswer>,
}

/// The servers, with their connections.
pub(super) struct ServerConnections {
    config: Config,
    session: Option<Session>,
    others: Servers,
}

impl ServerConnections {
    pub(super) fn new(config: Config) -> Self {
        let others = Servers::new(&config, "oncely top", LIMIT);
        Self { config, session: None, others }
    }

    /// Queries all servers at once. Takes no longer than the limit of one.
    ///
    /// # Errors
    /// If the database does not match the configuration. A server that does not answer is part of the result.
    pub(super) async fn ask(&mut self) -> anyhow::Result<ServerAnswers> {
        let Self { config, session, others } = self;
        let database = async {
            // The query holds its session, which is dropped with it.
            match tokio::time::timeout(LIMIT, database(config, session)).await {
                Ok(answer) => answer,
                Err(_) => Err(PostgresUnreachable(format!("no answer within {LIMIT:?}")).into()),
            }
        };
        let snapshot = StatusSnapshot::of_servers(config, others, database).await?;
        Ok(ServerAnswers { at: Utc::now(), snapshot })
    }
}

async fn database(config: &Config, kept: &mut Option<Session>) -> anyhow::Result<DatabaseAnswer> {
    let mut session = match kept.take() {
        Some(open) => open,
        None => open_session(config).await?,
    };
    let connection = &mut session.connection;
    let asked = Instant::now();
    let now = pg::database_time(connection).await?;
    let latency = asked.elapsed();
    let overview = Overview::take(connection, Some(&config.consumer_names()), now).await?;
    let letters = pg::waiting_letters(connection).await?;
    let letters = letters.into_iter().map(|letters| (letters.consumer, letters.waiting)).collect();
    let cell = session.cell.name.clone();
    *kept = Some(session);
    Ok(DatabaseAnswer { cell, overview, letters, latency })
}
