//! Do the servers hold what the configuration says? What worker and relay ask before they start, and the doctor among other things.

mod files;
mod found;
mod handlers;
mod mirror;
mod postgres;
mod rabbitmq;
mod trust;

#[cfg(feature = "gateway")]
pub(crate) use files::warn_of_gateway_files;
pub(crate) use files::{secret_files, warn_of_secret_files};
pub use found::{Finding, Verdict};
pub(crate) use found::{Found, Quoted};
pub(crate) use handlers::{consumers, handlers};
use mirror::cluster;
pub(crate) use mirror::{IN_CLUSTER, judge_cluster};
use postgres::code_of;
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

/// The checks whose errors only another configuration mends (or, for `pg.version`, another server). Whatever else is wrong at a start
/// (a server in a state that passes, a migration, a right, a function or a queue that is missing) may be mended while the process waits,
/// as it waits for the same once it runs.
const OF_CONFIGURATION: [&str; 11] = [
    "config",
    "config.files",
    "pg.reach",
    "pg.tls",
    "pg.pooler",
    "pg.version",
    "pg.encoding",
    "pg.cell",
    "mq.reach",
    "mq.tls",
    "redis.cluster",
];

/// What an error is about that only another program mends.
const PROGRAM: &str = "program";

/// What a process that starts has to know.
#[derive(Debug, Default)]
pub(crate) struct Preflight {
    /// What must be changed in the configuration.
    pub(crate) problems: Problems,
    /// What must be changed at the servers.
    unfit: Problems,
    /// Servers that do not answer: they may come back.
    unreachable: Vec<String>,
    /// An open session, where PostgreSQL is fit.
    pub(crate) session: Option<Session>,
}

impl Preflight {
    fn note(&mut self, found: Found) {
        for finding in found.findings.iter().filter(|finding| finding.verdict == Verdict::Error) {
            let problems = match OF_CONFIGURATION.contains(&finding.check) || finding.about == PROGRAM {
                true => &mut self.problems,
                false => &mut self.unfit,
            };
            problems.add(&finding.about, &finding.text);
        }
        self.unreachable.extend(found.unreachable.into_iter().map(|(_, text)| text));
    }

    /// Looks whether the mirror is a server that can be one.
    pub(crate) async fn look_at_mirror(&mut self, config: &Config) {
        let mut found = Found::default();
        cluster(config, &mut found).await;
        self.note(found);
    }

    /// What a process that has started waits for, in one line each.
    pub(crate) fn waits_for(&self) -> Vec<String> {
        let unfit = self.unfit.list().iter().map(ToString::to_string);
        self.unreachable.iter().cloned().chain(unfit).collect()
    }

    /// Says what the process waits for.
    pub(crate) fn log_wait(&self) -> String {
        for problem in self.unfit.list() {
            tracing::error!(place = problem.place, "waiting until this is mended: {}", problem.message);
        }
        if !self.unreachable.is_empty() {
            tracing::warn!(servers = self.unreachable.join("; "), "waiting for servers");
        }
        format!("waiting for servers: {}", self.waits_for().join("; "))
    }

    /// Everything that must be changed, for those who do not wait.
    ///
    /// # Errors
    /// If there is something.
    pub(crate) fn refused(&self) -> Result<(), Problems> {
        let mut all = Problems::default();
        for problem in self.problems.list().iter().chain(self.unfit.list()) {
            all.add(&problem.place, &problem.message);
        }
        all.or(())
    }

    /// The keys of a worker. Without them [`Preflight::waits_for`] says why.
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
    found.refused()?;
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
