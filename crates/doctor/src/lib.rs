//! Checks configuration, servers, grants and live state. Each check reads, judges and prints a fix; none changes anything.
//!
//! The checks of one server run one after the other on one connection, the servers concurrently. A check that can't run (no rights, no
//! answer, no HTTP API) is skipped with the reason: it never counts as passed.

// Between the crates of Oncely, not of its interface: names and types say most.
#![allow(missing_docs)]

mod broker_api;
mod catalogue;
mod check;
mod check_session;
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
mod words;

use std::time::Duration;

pub use self::catalogue::{CHECKS, check};
pub use self::check::Check;
use self::check_session::CheckSession;
pub use self::limits::Limits;
pub use self::redis_cluster::IN_CLUSTER;
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
const PATIENCE: Duration = Duration::from_secs(2);
/// Limit of a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// Runs all checks, with the configured login: checks that its role may not read are skipped. Changes nothing, and waits for up to two
/// seconds for each answer. If dropped, only connections that are closing remain.
pub async fn run(config: &Config) -> Report {
    examine(config, &Problems::default(), &CheckSelection::default()).await
}

/// Runs the checks of a scope. `problems` are those of the configuration: a server with problems in its section is not queried.
pub async fn examine(config: &Config, problems: &Problems, scope: &CheckSelection) -> Report {
    let (found, role) = run_all(config, problems, scope).await;
    Report::from_findings(found, role, scope)
}

/// Reports the problems of an unusable configuration.
#[must_use]
pub fn unusable(problems: &Problems, scope: &CheckSelection) -> Report {
    let mut found = CheckFindings::default();
    configuration(None, problems, &mut found);
    Report::from_findings(found, scope.role.unwrap_or(Role::Worker), scope)
}

fn configuration(config: Option<&Config>, problems: &Problems, found: &mut CheckFindings) {
    for problem in problems.list() {
        found.error("config", problem.place.as_str(), problem.message.as_str());
    }
    if let Some(config) = config {
        let names: Vec<_> = config.consumers.iter().map(|consumer| consumer.name.as_str()).collect();
        found.add_read("config", format!("consumers {}", names.join(", ")));
        preflight::check_secret_files(config, found);
    }
}

/// Returns the configuration with the doctor's time limits.
fn patient(config: &Config, scope: &CheckSelection) -> Config {
    let mut config = config.clone();
    if !scope.at_start {
        config.postgres.connect_timeout = config.postgres.connect_timeout.min(CONNECT);
        config.postgres.statement_timeout = PATIENCE;
        config.postgres.lock_timeout = config.postgres.lock_timeout.min(PATIENCE / 2);
        config.rabbitmq.timeout = config.rabbitmq.timeout.min(CONNECT);
    }
    config
}

/// Opens a session that changes nothing; `None` if that fails, which is a finding.
async fn open_session<'f>(
    config: &Config,
    scope: &CheckSelection,
    found: &'f mut CheckFindings,
) -> Option<CheckSession<'f>> {
    let session = preflight::postgres(config, found).await;
    if !scope.at_start {
        hosts::run_checks(config, found).await;
    }
    let mut session = session?;
    let limit = config.postgres.client_timeout();
    match pg::within(limit, pg::read_only(&mut session.connection)).await {
        Ok(()) => Some(CheckSession::new(session, limit, found)),
        Err(error) => {
            preflight::unexpected(found, "pg.reach", &config.postgres.shown(), error);
            None
        }
    }
}

async fn run_all(config: &Config, problems: &Problems, scope: &CheckSelection) -> (CheckFindings, Role) {
    let mut found = CheckFindings::default();
    configuration(Some(config), problems, &mut found);
    let config = &patient(config, scope);
    let bad = |section: &str| problems.list().iter().any(|problem| problem.place.starts_with(section));
    let limit = if scope.at_start { config.rabbitmq.timeout } else { PATIENCE };

    // The role first: the queries of other servers depend on it.
    let mut in_database = CheckFindings::default();
    let mut asking = match bad("postgres.") {
        true => None,
        false => open_session(config, scope, &mut in_database).await,
    };
    let role = match &mut asking {
        Some(asking) => login::role(scope.role, asking).await,
        None => scope.role.unwrap_or(Role::Worker),
    };
    let (mut in_broker, mut in_mirror) = (CheckFindings::default(), CheckFindings::default());
    let database = async {
        if let Some(mut asking) = asking {
            postgres(config, scope, role, &mut asking).await;
            asking.close().await;
        }
    };
    // A relay publishes to the exchanges that events name; an auditor does not use the broker.
    let with_queues = !scope.at_start || role != Role::Relay;
    let broker = async {
        if !bad("rabbitmq.") && scope.includes_any_of(&["mq"]) && !(scope.at_start && role == Role::Auditor) {
            rabbitmq::run_checks(config, scope, limit, with_queues, &mut in_broker).await;
        }
    };
    let mirror = async {
        let needs = matches!(role, Role::Worker | Role::Relay);
        if !bad("redis.")
            && !bad("mirror.")
            && scope.includes_any_of(&["redis"])
            && (needs || !scope.at_start)
        {
            mirror_server::run_checks(config, scope, &mut in_mirror).await;
        }
    };
    tokio::join!(database, broker, mirror);
    if role != Role::Worker && !scope.at_start {
        // This check applies to a worker's user only.
        for finding in in_broker.findings.iter_mut().filter(|finding| finding.check == "mq.user") {
            finding.verdict = Verdict::Skipped;
        }
    }
    found.join(in_database);
    found.join(in_broker);
    found.join(in_mirror);
    (found, role)
}

async fn postgres(config: &Config, scope: &CheckSelection, role: Role, asking: &mut CheckSession<'_>) {
    if role != Role::Worker {
        asking.found.skipped("pg.handler", format!("this is the login of the role {role}, not a worker's"));
    }
    if let Some((session, found)) = asking.at_start() {
        if role == Role::Worker {
            preflight::handlers(config, session, found).await;
        }
        if role == Role::Worker || !scope.at_start {
            preflight::consumers(config, session, found).await;
        }
        let has_key = config.mirror.as_ref().is_some_and(|mirror| mirror.key.is_some());
        match role {
            Role::Worker => {
                preflight::read_secrets(config, session, found).await;
            }
            Role::Relay if config.mirror.is_some() && !has_key => {
                preflight::read_tag_keys(config, session, found).await;
            }
            Role::Relay | Role::Operator | Role::Auditor => {}
        }
    }
    if scope.at_start {
        return;
    }
    let limits = &scope.limits;
    login::powers(asking).await;
    server::run_checks(config, limits, asking).await;
    maintenance::run_checks(config, limits, asking).await;
    if scope.includes_any_of(&["live"]) {
        live::run_checks(config, limits, asking).await;
    }
    if scope.includes_any_of(&["data"]) {
        identity::run_checks(limits, asking).await;
    }
}
