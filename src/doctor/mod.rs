//! Is everything as it must be? Each check reads, judges and says what to do; none changes anything.
//!
//! The checks of one server run one after the other on one connection, the servers beside each other. What can't be looked at (no rights, no
//! answer, no HTTP API) is skipped and says why: it is never taken for fine.

mod asking;
mod broker_api;
mod catalogue;
mod check;
mod hosts;
mod identity;
mod live;
mod login;
mod maintenance;
mod mirror_server;
mod rabbitmq;
mod report;
mod role;
mod scope;
mod server;
mod words;

use std::time::Duration;

use self::asking::Asking;
pub use self::catalogue::{CHECKS, check};
pub use self::check::Check;
pub use self::report::{Examined, Report};
pub use self::role::Role;
pub use self::scope::{Limits, Scope};
use crate::config::{Config, Problems};
use crate::pg;
use crate::preflight::{self, Found};
pub use crate::preflight::{Finding, Verdict};
pub use crate::tls::TlsFault;

/// How long one question may take where nobody waits for its answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// And a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// All checks, with the login that the configuration names: what its role may not read is skipped. Changes nothing, and waits for up to two
/// seconds for each answer. Dropped, it leaves nothing behind but connections that end.
pub async fn run(config: &Config) -> Report {
    examine(config, &Problems::default(), &Scope::default()).await
}

/// The checks of a scope. `problems` are those of the configuration: a server whose section has some is not asked.
pub async fn examine(config: &Config, problems: &Problems, scope: &Scope) -> Report {
    let (found, role) = look(config, problems, scope).await;
    Report::of(found, role, scope)
}

/// What is known of a configuration that can't be used at all.
#[must_use]
pub fn unusable(problems: &Problems, scope: &Scope) -> Report {
    let mut found = Found::default();
    configuration(None, problems, &mut found);
    Report::of(found, scope.role.unwrap_or(Role::Worker), scope)
}

fn configuration(config: Option<&Config>, problems: &Problems, found: &mut Found) {
    for problem in problems.list() {
        found.error("config", problem.place.as_str(), problem.message.as_str());
    }
    if let Some(config) = config {
        let names: Vec<_> = config.consumers.iter().map(|consumer| consumer.name.as_str()).collect();
        found.read("config", format!("consumers {}", names.join(", ")));
        preflight::secret_files(config, found);
    }
}

/// The same configuration, with the doctor's patience.
fn patient(config: &Config, scope: &Scope) -> Config {
    let mut config = config.clone();
    if !scope.at_start {
        config.postgres.connect_timeout = config.postgres.connect_timeout.min(CONNECT);
        config.postgres.statement_timeout = PATIENCE;
        config.postgres.lock_timeout = config.postgres.lock_timeout.min(PATIENCE / 2);
        config.rabbitmq.timeout = config.rabbitmq.timeout.min(CONNECT);
    }
    config
}

async fn look(config: &Config, problems: &Problems, scope: &Scope) -> (Found, Role) {
    let mut found = Found::default();
    configuration(Some(config), problems, &mut found);
    let config = &patient(config, scope);
    let bad = |section: &str| problems.list().iter().any(|problem| problem.place.starts_with(section));
    let limit = if scope.at_start { config.rabbitmq.timeout } else { PATIENCE };

    // First who asks: what the others are asked follows from that.
    let mut in_database = Found::default();
    let session = match bad("postgres.") {
        true => None,
        false => preflight::postgres(config, &mut in_database).await,
    };
    if !bad("postgres.") && !scope.at_start {
        hosts::look(config, &mut in_database).await;
    }
    let mut role = scope.role.unwrap_or(Role::Worker);
    let asking = match session {
        None => None,
        Some(mut session) => {
            let changed =
                pg::within(config.postgres.client_timeout(), pg::read_only(&mut session.connection));
            match changed.await {
                Ok(()) => {
                    let mut asking = Asking::new(session, config.postgres.client_timeout(), &mut in_database);
                    role = login::role(scope.role, &mut asking).await;
                    Some(asking)
                }
                Err(error) => {
                    let server = config.postgres.shown();
                    preflight::unexpected(&mut in_database, "pg.reach", &server, error);
                    None
                }
            }
        }
    };
    let (mut in_broker, mut in_mirror) = (Found::default(), Found::default());
    let database = async {
        if let Some(mut asking) = asking {
            postgres(config, scope, role, &mut asking).await;
            asking.close().await;
        }
    };
    // A relay publishes where an event says; an auditor has nothing to do there.
    let with_queues = !scope.at_start || role != Role::Relay;
    let broker = async {
        if !bad("rabbitmq.") && scope.asks_for(&["mq"]) && !(scope.at_start && role == Role::Auditor) {
            rabbitmq::look(config, scope, limit, with_queues, &mut in_broker).await;
        }
    };
    let mirror = async {
        let needs = matches!(role, Role::Worker | Role::Relay);
        if !bad("redis.") && !bad("mirror.") && scope.asks_for(&["redis"]) && (needs || !scope.at_start) {
            mirror_server::look(config, scope, &mut in_mirror).await;
        }
    };
    tokio::join!(database, broker, mirror);
    if role != Role::Worker && !scope.at_start {
        // What a worker's user must see is none of another's.
        for finding in in_broker.findings.iter_mut().filter(|finding| finding.check == "mq.user") {
            finding.verdict = Verdict::Skipped;
        }
    }
    found.join(in_database);
    found.join(in_broker);
    found.join(in_mirror);
    (found, role)
}

async fn postgres(config: &Config, scope: &Scope, role: Role, asking: &mut Asking<'_>) {
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
    server::look(config, limits, asking).await;
    maintenance::look(config, limits, asking).await;
    if scope.asks_for(&["live"]) {
        live::look(config, limits, asking).await;
    }
    if scope.asks_for(&["data"]) {
        identity::look(limits, asking).await;
    }
}
