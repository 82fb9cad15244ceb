//! Do the servers hold what the configuration says? What worker and relay ask before they start, and the doctor among other things.

mod files;
mod found;
mod handlers;
mod postgres;
mod rabbitmq;
mod trust;

#[cfg(feature = "gateway")]
pub(crate) use files::warn_of_gateway_files;
pub(crate) use files::{secret_files, warn_of_secret_files};
pub use found::{Finding, Verdict};
pub(crate) use found::{Found, Quoted};
pub(crate) use handlers::{consumers, handlers};
#[cfg(feature = "gateway")]
use postgres::database;
use postgres::pauses;
pub(crate) use postgres::{postgres, read_secrets, read_tag_keys, unexpected};
pub(crate) use rabbitmq::{close, queues, reach};
pub(crate) use trust::{RABBITMQ, REDIS};

use crate::config::{Config, Problems};
#[cfg(feature = "gateway")]
use crate::pg::PgSettings;
use crate::pg::{Secrets, Session};

/// What a process that starts has to know.
#[derive(Debug, Default)]
pub(crate) struct Preflight {
    /// What must be changed.
    pub(crate) problems: Problems,
    /// Servers that do not answer: they may come back.
    pub(crate) unreachable: Vec<String>,
    /// An open session, where PostgreSQL is fit.
    pub(crate) session: Option<Session>,
}

impl Preflight {
    fn note(&mut self, found: Found) {
        for problem in found.problems().list() {
            self.problems.add(&problem.place, &problem.message);
        }
        self.unreachable.extend(found.unreachable.into_iter().map(|(_, text)| text));
    }

    /// The keys of a worker. Without them: why is among the problems or the unreachable servers.
    pub(crate) async fn read_secrets(&mut self, config: &Config, session: &mut Session) -> Option<Secrets> {
        let mut found = Found::default();
        let secrets = read_secrets(config, session, &mut found).await;
        self.note(found);
        secrets
    }
}

/// PostgreSQL does not answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unreachable(pub(crate) String);

/// Opens a session to a database that is fit for work.
///
/// # Errors
/// What is wrong with the database, as start-up would say it, or that it does not answer.
pub(crate) async fn open_session(config: &Config) -> anyhow::Result<Session> {
    let mut found = preflight(config, false).await;
    let session = found.session.take();
    fit(session, found)
}

/// What was opened, where nothing was found that speaks against it.
///
/// # Errors
/// Like [`open_session`].
pub(crate) fn fit<T>(opened: Option<T>, found: Preflight) -> anyhow::Result<T> {
    if !found.problems.is_empty() {
        return Err(found.problems.into());
    }
    opened.ok_or_else(|| Unreachable(found.unreachable.join("; ")).into())
}

/// Asks PostgreSQL alone. Changes nothing.
#[cfg(feature = "gateway")]
pub(crate) async fn fit_database(settings: &PgSettings, cell: &str) -> Preflight {
    let mut found = Found::default();
    let session = database(settings, cell, &mut found).await;
    conclude(session, found)
}

/// Asks PostgreSQL and, for a worker, about its handlers and queues. Changes nothing.
pub(crate) async fn preflight(config: &Config, for_worker: bool) -> Preflight {
    let mut found = Found::default();
    let mut session = postgres(config, &mut found).await;
    if for_worker {
        if let Some(session) = &mut session {
            handlers(config, session, &mut found).await;
            pauses(config, session, &mut found).await;
        }
        if let Some(connection) = reach(config, &mut found).await {
            queues(config, &connection, config.rabbitmq.timeout, &mut found).await;
            close(connection).await;
        }
    }
    conclude(session, found)
}

/// Asks PostgreSQL alone, and about handlers: for those that run without a broker. Changes nothing.
pub(crate) async fn preflight_without_broker(config: &Config) -> Preflight {
    let mut found = Found::default();
    let mut session = postgres(config, &mut found).await;
    if let Some(session) = &mut session {
        handlers(config, session, &mut found).await;
    }
    conclude(session, found)
}

fn conclude(session: Option<Session>, found: Found) -> Preflight {
    for finding in &found.findings {
        if matches!(finding.verdict, Verdict::Warning | Verdict::Skipped) {
            tracing::warn!(place = finding.about, "{}", finding.text);
        }
    }
    let mut preflight = Preflight { session, ..Preflight::default() };
    preflight.note(found);
    preflight
}
