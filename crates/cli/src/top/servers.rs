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
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);

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
        let others = Servers::new(&config, "oncely top", ANSWER_TIMEOUT);
        Self { config, session: None, others }
    }

    /// Queries all servers at once. Takes no longer than the limit of one.
    ///
    /// # Errors
    /// If the database does not match the configuration. A server that does not answer is part of the result.
    pub(super) async fn query(&mut self) -> anyhow::Result<ServerAnswers> {
        let Self { config, session, others } = self;
        let database = async {
            // The query holds its session, which is dropped with it.
            match tokio::time::timeout(ANSWER_TIMEOUT, query_database(config, session)).await {
                Ok(answer) => answer,
                Err(_) => Err(PostgresUnreachable(format!("no answer within {ANSWER_TIMEOUT:?}")).into()),
            }
        };
        let snapshot = StatusSnapshot::query_servers(config, others, database).await?;
        Ok(ServerAnswers { at: Utc::now(), snapshot })
    }
}

/// Queries PostgreSQL on the kept session, otherwise on a new one; a failed query drops the session.
async fn query_database(
    config: &Config,
    kept_session: &mut Option<Session>,
) -> anyhow::Result<DatabaseAnswer> {
    let mut session = match kept_session.take() {
        Some(session) => session,
        None => open_session(config).await?,
    };
    let connection = &mut session.connection;
    let started_at = Instant::now();
    let now = pg::read_database_time(connection).await?;
    let latency = started_at.elapsed();
    let overview = Overview::read(connection, Some(&config.consumer_names()), now).await?;
    let letters = pg::count_waiting_letters(connection).await?;
    let letters = letters.into_iter().map(|letters| (letters.consumer, letters.waiting)).collect();
    let cell = session.cell.name.clone();
    *kept_session = Some(session);
    Ok(DatabaseAnswer { cell, overview, letters, latency })
}
