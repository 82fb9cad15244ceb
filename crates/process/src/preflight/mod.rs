//! Checks that the servers fit the configuration, for workers and relays before they start, and for the doctor.

mod engine;
mod files;
mod found;
mod handlers;
mod postgres;
mod trust;

pub use engine::{check_relay_engine, check_worker_engine};
pub use files::warn_of_gateway_files;
pub use files::{check_secret_files, warn_of_secret_files};
pub use found::{CheckFindings, QuotedText};
pub use found::{Finding, Verdict};
pub use handlers::{check_consumers, check_handlers};
use postgres::connect_and_check;
use postgres::sqlstate;
pub use postgres::{check_pauses, check_postgres, check_tag_keys, read_secrets, report_query_error};
pub use trust::{RABBITMQ, REDIS};

use oncely_config::{Config, Problems};
use oncely_postgres::PgSettings;
use oncely_postgres::{Secrets, Session};

/// Checks with errors that require another configuration (or, for `pg.version`, another server). All other errors at start-up (a temporary
/// state of a server, a missing migration, grant, function or queue) may be fixed while the process waits, as it waits for the same at run
/// time.
const CONFIGURATION_CHECKS: [&str; 11] = [
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
const PROGRAM_SUBJECT: &str = "program";

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
    /// Adds the errors and the unreachable servers of findings.
    pub fn add_findings(&mut self, findings: CheckFindings) {
        for finding in findings.findings.iter().filter(|finding| finding.verdict == Verdict::Error) {
            let problems =
                match CONFIGURATION_CHECKS.contains(&finding.check) || finding.about == PROGRAM_SUBJECT {
                    true => &mut self.problems,
                    false => &mut self.unfit,
                };
            problems.add(&finding.about, &finding.text);
        }
        self.unreachable.extend(findings.unreachable.into_iter().map(|(_, text)| text));
    }

    /// Returns the conditions that the process waits for, one line each.
    pub fn wait_conditions(&self) -> Vec<String> {
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
        format!("waiting for servers: {}", self.wait_conditions().join("; "))
    }

    /// Checks that no change is required, neither of the configuration nor at the servers, for commands that do not wait.
    ///
    /// # Errors
    /// If changes are required, with all of them.
    pub fn ensure_fit(&self) -> Result<(), Problems> {
        let mut all = Problems::default();
        for problem in self.problems.list().iter().chain(self.unfit.list()) {
            all.add(&problem.place, &problem.message);
        }
        all.into_result(())
    }

    /// Reads a worker's keys; `None` after an error of the query, which is added to the [`Preflight::wait_conditions`].
    pub async fn read_secrets(&mut self, config: &Config, session: &mut Session) -> Option<Secrets> {
        let mut findings = CheckFindings::default();
        let secrets = read_secrets(config, session, &mut findings).await;
        self.add_findings(findings);
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
/// If the database is unfit, with its problems as reported at start-up, or does not answer ([`PostgresUnreachable`]).
pub async fn open_session(config: &Config) -> anyhow::Result<Session> {
    let mut preflight = preflight(config).await;
    let session = preflight.session.take();
    ensure_opened(session, preflight)
}

/// Returns the object that was opened.
///
/// # Errors
/// If a check has failed, with the required changes; or if `object` is `None`, as PostgreSQL does not answer ([`PostgresUnreachable`]).
pub fn ensure_opened<T>(object: Option<T>, preflight: Preflight) -> anyhow::Result<T> {
    preflight.ensure_fit()?;
    object.ok_or_else(|| PostgresUnreachable(preflight.unreachable.join("; ")).into())
}

/// Checks PostgreSQL for the gateway, which has a configuration of its own. Changes nothing.
pub async fn preflight_database(settings: &PgSettings, cell: &str) -> Preflight {
    let mut findings = CheckFindings::default();
    let session = connect_and_check(settings, cell, &mut findings).await;
    conclude(session, findings)
}

/// Checks PostgreSQL alone. Changes nothing.
pub async fn preflight(config: &Config) -> Preflight {
    let mut findings = CheckFindings::default();
    let session = check_postgres(config, &mut findings).await;
    conclude(session, findings)
}

/// Checks PostgreSQL and the handlers, for commands without a broker. Changes nothing.
pub async fn preflight_without_broker(config: &Config) -> Preflight {
    let mut findings = CheckFindings::default();
    let mut session = check_postgres(config, &mut findings).await;
    if let Some(session) = &mut session {
        check_handlers(config, session, &mut findings).await;
    }
    conclude(session, findings)
}

/// Makes the result of checks from their findings, and logs the warnings and skipped checks among them.
pub fn conclude(session: Option<Session>, findings: CheckFindings) -> Preflight {
    for finding in &findings.findings {
        if matches!(finding.verdict, Verdict::Warning | Verdict::Skipped) {
            tracing::warn!(place = finding.about, "{}", finding.text);
        }
    }
    let mut preflight = Preflight { session, ..Preflight::default() };
    preflight.add_findings(findings);
    preflight
}
