//! Checks that the servers fit the configuration, for workers and relays before they start, and for the doctor.

mod files;
mod found;
mod handlers;
mod postgres;
mod trust;

pub use files::warn_of_gateway_files;
pub use files::{check_secret_files, warn_of_secret_files};
pub use found::{CheckFindings, QuotedText};
pub use found::{Finding, Verdict};
pub use handlers::{consumers, handlers};
use postgres::code_of;
use postgres::database;
pub use postgres::{pauses, postgres, read_secrets, read_tag_keys, unexpected};
pub use trust::{RABBITMQ, REDIS};

use oncely_config::{Config, Problems};
use oncely_postgres::PgSettings;
use oncely_postgres::{Secrets, Session};

/// Checks with errors that require another configuration (or, for `pg.version`, another server). All other errors at start-up (a temporary state
/// of a server, a missing migration, grant, function or queue) may be fixed while the process waits, as it waits for the same at run time.
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

/// Subject of errors that require another version of the program.
const PROGRAM: &str = "program";

/// Result of the checks of a starting process.
#[derive(Debug, Default)]
pub struct Preflight {
    /// Required changes of the configuration.
    pub problems: Problems,
    /// Required changes at the servers.
    unfit: Problems,
    /// Servers that do not answer; they may recover.
    unreachable: Vec<String>,
    /// An open session, if PostgreSQL is fit.
    pub session: Option<Session>,
}

impl Preflight {
    /// Adds findings.
    pub fn note(&mut self, found: CheckFindings) {
        for finding in found.findings.iter().filter(|finding| finding.verdict == Verdict::Error) {
            let problems = match OF_CONFIGURATION.contains(&finding.check) || finding.about == PROGRAM {
                true => &mut self.problems,
                false => &mut self.unfit,
            };
            problems.add(&finding.about, &finding.text);
        }
        self.unreachable.extend(found.unreachable.into_iter().map(|(_, text)| text));
    }

    /// Returns the conditions that the process waits for, one line each.
    pub fn waits_for(&self) -> Vec<String> {
        let unfit = self.unfit.list().iter().map(ToString::to_string);
        self.unreachable.iter().cloned().chain(unfit).collect()
    }

    /// Logs the conditions that the process waits for, and returns them in one line.
    pub fn log_wait(&self) -> String {
        for problem in self.unfit.list() {
            tracing::error!(place = problem.place, "waiting until this is fixed: {}", problem.message);
        }
        if !self.unreachable.is_empty() {
            tracing::warn!(servers = self.unreachable.join("; "), "waiting for servers");
        }
        format!("waiting for servers: {}", self.waits_for().join("; "))
    }

    /// Returns all required changes, for commands that do not wait.
    ///
    /// # Errors
    /// If there are any.
    pub fn refused(&self) -> Result<(), Problems> {
        let mut all = Problems::default();
        for problem in self.problems.list().iter().chain(self.unfit.list()) {
            all.add(&problem.place, &problem.message);
        }
        all.or(())
    }

    /// Reads a worker's keys. Without them [`Preflight::waits_for`] has the reason.
    pub async fn read_secrets(&mut self, config: &Config, session: &mut Session) -> Option<Secrets> {
        let mut found = CheckFindings::default();
        let secrets = read_secrets(config, session, &mut found).await;
        self.note(found);
        secrets
    }
}

/// PostgreSQL does not answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PostgresUnreachable(pub String);

/// Opens a session to a fit database.
///
/// # Errors
/// The problems of the database, as reported at start-up, or that it does not answer.
pub async fn open_session(config: &Config) -> anyhow::Result<Session> {
    let mut found = preflight(config).await;
    let session = found.session.take();
    fit(session, found)
}

/// Returns the opened object if no check has failed.
///
/// # Errors
/// See [`open_session`].
pub fn fit<T>(opened: Option<T>, found: Preflight) -> anyhow::Result<T> {
    found.refused()?;
    opened.ok_or_else(|| PostgresUnreachable(found.unreachable.join("; ")).into())
}

/// Checks PostgreSQL for the gateway, which has a configuration of its own. Changes nothing.
pub async fn fit_database(settings: &PgSettings, cell: &str) -> Preflight {
    let mut found = CheckFindings::default();
    let session = database(settings, cell, &mut found).await;
    conclude(session, found)
}

/// Checks PostgreSQL alone. Changes nothing.
pub async fn preflight(config: &Config) -> Preflight {
    let mut found = CheckFindings::default();
    let session = postgres(config, &mut found).await;
    conclude(session, found)
}

/// Checks PostgreSQL and the handlers, for commands without a broker. Changes nothing.
pub async fn preflight_without_broker(config: &Config) -> Preflight {
    let mut found = CheckFindings::default();
    let mut session = postgres(config, &mut found).await;
    if let Some(session) = &mut session {
        handlers(config, session, &mut found).await;
    }
    conclude(session, found)
}

/// Judges findings: logs warnings, and keeps the session if PostgreSQL is fit.
pub fn conclude(session: Option<Session>, found: CheckFindings) -> Preflight {
    for finding in &found.findings {
        if matches!(finding.verdict, Verdict::Warning | Verdict::Skipped) {
            tracing::warn!(place = finding.about, "{}", finding.text);
        }
    }
    let mut preflight = Preflight { session, ..Preflight::default() };
    preflight.note(found);
    preflight
}
