//! Checks configuration, servers, grants and live state. Each check reads data and reports findings with a fix; none changes anything.
//!
//! The checks of one server run one after the other on one connection, the servers concurrently. A check that can't run (no rights, no
//! answer, no HTTP API) is skipped with the reason: it never counts as passed.

// Between the crates of Oncely, not of its interface: names and types say most.
#![allow(missing_docs)]

mod broker_api;
mod catalogue;
mod check;
mod check_session;
mod citus;
mod hosts;
mod identity;
mod limits;
mod live;
mod login;
mod maintenance;
mod mirror_server;
mod queues;
mod rabbitmq;
mod redis_cluster;
mod report;
mod role;
mod scope;
mod server;
mod start;
mod wal;
mod words;

use std::time::Duration;

pub use self::catalogue::{CHECKS, find_check};
pub use self::check::Check;
use self::check_session::CheckSession;
pub use self::limits::Limits;
pub use self::redis_cluster::{CLUSTER_TEXT, NO_CLUSTER_TEXT};
pub use self::report::{CheckResult, Report};
pub use self::role::Role;
pub use self::scope::CheckSelection;
pub use self::start::{check_mirror, preflight_worker};
use oncely_config::{Config, Problems};
pub use oncely_net::tls::TlsFault;
use oncely_postgres as pg;
use oncely_process::preflight::{self, CheckFindings};
pub use oncely_process::preflight::{Finding, Verdict};

/// Limit of one query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs all checks, with the configured login, and reports the results: checks that its role may not read are skipped. Changes nothing, and
/// waits for up to two seconds for each result. If dropped, only connections that are closing remain.
pub async fn run(config: &Config) -> Report {
    examine(config, &Problems::default(), &CheckSelection::default()).await
}

/// Runs the checks of a scope, and reports the results. `problems` are those of the configuration: a server with problems in its section is
/// not queried.
pub async fn examine(config: &Config, problems: &Problems, scope: &CheckSelection) -> Report {
    let (findings, role) = run_all(config, problems, scope).await;
    Report::from_findings(findings, role, scope)
}

/// Makes the report of an unusable configuration, of which no server is queried.
#[must_use]
pub fn report_problems(problems: &Problems, scope: &CheckSelection) -> Report {
    let mut findings = CheckFindings::default();
    check_configuration(None, problems, &mut findings);
    Report::from_findings(findings, scope.role.unwrap_or(Role::Worker), scope)
}

/// Adds the problems of the configuration, and checks its secret files.
fn check_configuration(config: Option<&Config>, problems: &Problems, findings: &mut CheckFindings) {
    for problem in problems.list() {
        findings.add_error("config", problem.place.as_str(), problem.message.as_str());
    }
    if let Some(config) = config {
        let names: Vec<_> = config.consumers.iter().map(|consumer| consumer.name.as_str()).collect();
        findings.add_read("config", format!("consumers {}", names.join(", ")));
        preflight::check_secret_files(config, findings);
    }
}

/// Returns the configuration with the doctor's time limits; unchanged for the checks of a starting process.
fn limit_times(config: &Config, scope: &CheckSelection) -> Config {
    let mut config = config.clone();
    if !scope.at_start {
        config.postgres.connect_timeout = config.postgres.connect_timeout.min(CONNECT_TIMEOUT);
        config.postgres.statement_timeout = QUERY_TIMEOUT;
        config.postgres.lock_timeout = config.postgres.lock_timeout.min(QUERY_TIMEOUT / 2);
        config.rabbitmq.timeout = config.rabbitmq.timeout.min(CONNECT_TIMEOUT);
    }
    config
}

/// Checks PostgreSQL, and opens a read-only session; `None` if that fails, which is a finding.
async fn open_session<'f>(
    config: &Config,
    scope: &CheckSelection,
    findings: &'f mut CheckFindings,
) -> Option<CheckSession<'f>> {
    let session = preflight::check_postgres(config, findings).await;
    if !scope.at_start {
        hosts::run_checks(config, findings).await;
    }
    let mut session = session?;
    let limit = config.postgres.client_timeout();
    match pg::wait_for_answer(limit, pg::set_read_only(&mut session.connection)).await {
        Ok(()) => Some(CheckSession::new(session, limit, findings)),
        Err(error) => {
            preflight::report_query_error(findings, "pg.reach", &config.postgres.redacted(), error);
            None
        }
    }
}

/// Runs all checks, those of the three servers at the same time. Returns the role that they were run for, too.
async fn run_all(config: &Config, problems: &Problems, scope: &CheckSelection) -> (CheckFindings, Role) {
    let mut findings = CheckFindings::default();
    check_configuration(Some(config), problems, &mut findings);
    let config = &limit_times(config, scope);
    let has_problems =
        |section: &str| problems.list().iter().any(|problem| problem.place.starts_with(section));
    let limit = if scope.at_start { config.rabbitmq.timeout } else { QUERY_TIMEOUT };

    // The role first: the queries of other servers depend on it.
    let mut in_database = CheckFindings::default();
    let mut session = match has_problems("postgres.") {
        true => None,
        false => open_session(config, scope, &mut in_database).await,
    };
    let role = match &mut session {
        Some(session) => login::check_role(scope.role, session).await,
        None => scope.role.unwrap_or(Role::Worker),
    };
    let (mut in_broker, mut in_mirror) = (CheckFindings::default(), CheckFindings::default());
    let database = async {
        if let Some(mut session) = session {
            check_postgres(config, scope, role, &mut session).await;
            session.close().await;
        }
    };
    // A relay publishes to the exchanges that events name; an auditor does not use the broker.
    let with_queues = !scope.at_start || role != Role::Relay;
    let broker = async {
        if !has_problems("rabbitmq.")
            && scope.includes_any_of(&["mq"])
            && !(scope.at_start && role == Role::Auditor)
        {
            rabbitmq::run_checks(config, scope, limit, with_queues, &mut in_broker).await;
        }
    };
    let mirror = async {
        let needs = matches!(role, Role::Worker | Role::Relay);
        if !has_problems("redis.")
            && !has_problems("mirror.")
            && scope.includes_any_of(&["redis"])
            && (needs || !scope.at_start)
        {
            mirror_server::run_checks(config, scope, &mut in_mirror).await;
        }
    };
    tokio::join!(database, broker, mirror);
    if role != Role::Worker {
        // This check applies to a worker's user only.
        for finding in in_broker.findings.iter_mut().filter(|finding| finding.check == "mq.user") {
            finding.verdict = Verdict::Skipped;
        }
    }
    findings.append(in_database);
    findings.append(in_broker);
    findings.append(in_mirror);
    (findings, role)
}

/// Runs the checks in PostgreSQL that the role may read.
async fn check_postgres(config: &Config, scope: &CheckSelection, role: Role, session: &mut CheckSession<'_>) {
    if role != Role::Worker {
        session
            .findings
            .add_skipped("pg.handler", format!("this is the login of the role {role}, not a worker's"));
    }
    if let Some((pg_session, findings)) = session.session_and_findings() {
        if role == Role::Worker {
            preflight::check_handlers(config, pg_session, findings).await;
        }
        if role == Role::Worker || !scope.at_start {
            preflight::check_consumers(config, pg_session, findings).await;
        }
        let has_key = config.mirror.as_ref().is_some_and(|mirror| mirror.key.is_some());
        match role {
            Role::Worker => {
                preflight::read_secrets(config, pg_session, findings).await;
                preflight::check_worker_engine(config, pg_session, findings).await;
            }
            Role::Relay if config.mirror.is_some() && !has_key => {
                preflight::check_tag_keys(config, pg_session, findings).await;
            }
            Role::Relay | Role::Operator | Role::Auditor => {}
        }
    }
    if scope.at_start {
        return;
    }
    let limits = &scope.limits;
    login::check_powers(session).await;
    server::run_checks(config, limits, session).await;
    wal::run_checks(limits, session).await;
    citus::run_checks(limits, session).await;
    maintenance::run_checks(config, limits, session).await;
    if scope.includes_any_of(&["live"]) {
        live::run_checks(config, limits, session).await;
    }
    if scope.includes_any_of(&["data"]) {
        identity::run_checks(limits, session).await;
    }
}
