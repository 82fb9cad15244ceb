//! Looks whether the servers hold what the configuration says, and reports everything at once.

use sqlx::Connection as _;

use crate::amqp::{AmqpError, Topology, connect};
use crate::config::{Config, Problems, masked};
use crate::fault::FaultClass;
use crate::handler::SqlFunction;
use crate::pg::{self, HandlerFunction, PgFault, Session, classify};

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Preflight {
    /// What must be changed.
    pub(crate) problems: Problems,
    /// Servers that do not answer: they may come back.
    pub(crate) unreachable: Vec<String>,
    /// An open session, where PostgreSQL is fit.
    pub(crate) session: Option<Session>,
    /// What may be wrong, and need not.
    pub(crate) warnings: Vec<(String, String)>,
    /// What works, and is not what the configuration says.
    pub(crate) notes: Vec<String>,
    /// What is fine, for people.
    pub(crate) fine: Vec<(String, String)>,
}

impl Preflight {
    /// The cell's secret. Without it: why is among the problems or the unreachable servers.
    pub(crate) async fn read_secret(&mut self, config: &Config, session: &mut Session) -> Option<Vec<u8>> {
        let asked = pg::secret(&mut session.connection);
        match pg::within(config.postgres.client_timeout(), asked).await {
            Ok(secret) => Some(secret),
            Err(error) => {
                let server = masked(&config.postgres.url);
                let what = format!(
                    "{server}: oncely.cell.secret can't be read (roles oncely_worker, oncely_relay, oncely_operator)"
                );
                unexpected(self, &what, error);
                None
            }
        }
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
    let mut found = Preflight::default();
    postgres(config, &mut found).await;
    if !found.problems.is_empty() {
        return Err(found.problems.into());
    }
    match found.session {
        Some(session) => Ok(session),
        None => Err(Unreachable(found.unreachable.join("; ")).into()),
    }
}

/// Asks PostgreSQL and, for a worker, about its handlers and queues. Changes nothing.
pub(crate) async fn preflight(config: &Config, for_worker: bool) -> Preflight {
    let mut found = Preflight::default();
    postgres(config, &mut found).await;
    if for_worker {
        handlers(config, &mut found).await;
        rabbitmq(config, true, &mut found).await;
    }
    for (place, what) in &found.warnings {
        tracing::warn!(place, "{what}");
    }
    found
}

/// Is the database fit for work?
pub(crate) async fn postgres(config: &Config, found: &mut Preflight) {
    let server = masked(&config.postgres.url);
    let mut connection = match config.postgres.connect("oncely preflight").await {
        Ok(connection) => connection,
        Err(error) if is_pooler(&error) => {
            found.problems.add("postgres.url", format!("{server}: {error}; {POOLER}"));
            return;
        }
        Err(error) => {
            let text = pg::describe(&error);
            match classify(error) {
                PgFault::Outage(_) => found.unreachable.push(format!("PostgreSQL at {server}: {text}")),
                PgFault::Fault(fault) => found.problems.add("postgres.url", format!("{server}: {fault}")),
            }
            return;
        }
    };
    match is_direct(config, &mut connection).await {
        Ok(true) => {}
        Ok(false) => {
            found.problems.add("postgres.url", format!("{server}: {POOLER}"));
            return;
        }
        Err(error) => {
            unexpected(found, &server, error);
            return;
        }
    }
    match pg::may_enter(&mut connection).await {
        Ok(None) => {}
        Ok(Some(login)) => {
            let what = format!(
                "the login {login} may not enter the schema oncely at {server}: grant it the role of its work, as in \"grant \
                 oncely_worker to {login}\""
            );
            found.problems.add("postgres.url", what);
            return;
        }
        Err(error) => {
            unexpected(found, &server, error);
            return;
        }
    }
    match pg::migration_state(&mut connection).await {
        Ok(state) if !state.pending.is_empty() => {
            let what = format!(
                "{} migrations are not applied at {server}; run `oncely migrate`",
                state.pending.len()
            );
            found.problems.add("postgres", what);
            return;
        }
        Ok(state) if !state.changed.is_empty() => {
            let what =
                format!("migrations {:?} were applied from other files than this program's", state.changed);
            found.problems.add("postgres", what);
            return;
        }
        Ok(_) => {}
        Err(error) => {
            unexpected(found, &server, error);
            return;
        }
    }
    let session = match Session::open(&config.postgres, "oncely preflight").await {
        Ok(session) => session,
        Err(error) => {
            unexpected(found, &server, error);
            return;
        }
    };
    if session.cell.name != config.cell {
        let what = format!(
            "the database at {server} is the cell {:?}, not {:?}: a wrong URL would deduplicate in the wrong place",
            session.cell.name, config.cell
        );
        found.problems.add("cell.name", what);
    }
    found.fine.push(("PostgreSQL".to_owned(), format!("{server}, epoch {}", session.cell.epoch)));
    found.session = Some(session);
}

/// A pooler that gives each transaction another server's process: what a session says of itself holds for nothing.
const POOLER: &str = "there is a pooler in between that shares a server's process among connections or drops start-up options: Oncely's sessions have settings, prepared statements and cancellations of their own; \
     connect to PostgreSQL directly, or in session mode with start-up options passed on";

/// Has each of two connections that are open a server's process of its own, and always the same? A pooler gives the process that
/// was free last to the next one who asks.
async fn is_direct(config: &Config, first: &mut sqlx::PgConnection) -> Result<bool, sqlx::Error> {
    let client_timeout = config.postgres.client_timeout();
    let mut second = config.postgres.connect("oncely preflight").await?;
    let before = pg::within(client_timeout, pg::process(first)).await?;
    let others = pg::within(client_timeout, pg::process(&mut second)).await?;
    let after = pg::within(client_timeout, pg::process(first)).await?;
    second.close().await?;
    Ok(before == after && before != others)
}

/// Are the functions of the consumers there? With the session that is open.
pub(crate) async fn handlers(config: &Config, found: &mut Preflight) {
    let server = masked(&config.postgres.url);
    let Some(mut session) = found.session.take() else { return };
    for consumer in &config.consumers {
        let Some(function) = &consumer.handler else {
            continue;
        };
        let place = format!("consumers.{}.handler.function", consumer.name);
        match pg::handler_functions(&mut session.connection, &function.name).await {
            Ok(functions) => {
                if let Some(what) = misfit(function, &functions) {
                    found.problems.add(place, format!("{what} (at {server})"));
                }
            }
            Err(error) => unexpected(found, &server, error),
        }
    }
    if let Err(error) = compare(config, &mut session, found).await {
        unexpected(found, &server, error);
    }
    found.session = Some(session);
}

/// Compares what decides about keys with what the database knows of it.
async fn compare(config: &Config, session: &mut Session, found: &mut Preflight) -> Result<(), sqlx::Error> {
    let known = pg::known_consumers(&mut session.connection).await?;
    let show = humantime::format_duration;
    for consumer in &config.consumers {
        let name = &consumer.name;
        let Some(known) = known.iter().find(|known| known.consumer == name.as_str()) else { continue };
        if consumer.retention < known.retention {
            found.notes.push(format!(
                "consumers.{name}.retention is {}, but the database keeps keys for {}, and that is used; to shorten it: `oncely \
                 retention set {name} {}`",
                show(consumer.retention),
                show(known.retention),
                show(consumer.retention).to_string().replace(' ', "")
            ));
        }
        if consumer.fingerprint.name() != known.fingerprint {
            found.notes.push(format!(
                "consumers.{name}.fingerprint is {}, and was {}: for keys that were stored before the key alone decides",
                consumer.fingerprint.name(),
                known.fingerprint
            ));
        }
    }
    if let Some(at) = pg::clock_refused_at(&mut session.connection).await? {
        found.notes.push(format!(
            "nothing is collected: the database's clock said {}, and nothing explained that; see `oncely gc run`",
            at.format("%Y-%m-%d %H:%M:%SZ")
        ));
    }
    Ok(())
}

/// What is wrong with a configured handler.
fn misfit(wanted: &SqlFunction, found: &[HandlerFunction]) -> Option<String> {
    let signature = |batch: bool| {
        let (argument, result) =
            if batch { ("oncely.message[]", "setof oncely.result") } else { ("oncely.message", "jsonb") };
        (format!("{}({argument})", wanted.name), result)
    };
    let (name, result) = signature(wanted.batch);
    match found.iter().find(|function| function.batch == wanted.batch) {
        Some(function) if function.fits && function.executable => None,
        Some(function) if function.fits => Some(format!(
            "the login {0} may not call {name}: grant execute on function {name} to {0}",
            function.login
        )),
        Some(function) => Some(format!("{name} returns {}, and must return {result}", function.returns)),
        None if found.is_empty() => Some(format!("there is no function {name}")),
        None => {
            let (other, _) = signature(!wanted.batch);
            Some(format!("there is no function {name}, but {other}: set batch = {}", !wanted.batch))
        }
    }
}

/// PROTOCOL VIOLATION is what a pooler says to start-up options that it does not know; or they are not in force.
fn is_pooler(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(error, sqlx::Error::Configuration(_)) || code.as_deref() == Some("08P01")
}

fn unexpected(found: &mut Preflight, server: &str, error: sqlx::Error) {
    if is_pooler(&error) {
        found.problems.add("postgres.url", format!("{server}: {error}; {POOLER}"));
        return;
    }
    match classify(error) {
        PgFault::Outage(outage) => found.unreachable.push(format!("PostgreSQL at {server}: {outage}")),
        // A server that is too slow for its own limits, most likely: it is waited for.
        PgFault::Fault(fault) if matches!(fault.class, FaultClass::Transient | FaultClass::Contention) => {
            found.unreachable.push(format!("PostgreSQL at {server}: {fault}"));
        }
        PgFault::Fault(fault) => found.problems.add("postgres", format!("{server}: {fault}")),
    }
}

/// What a queue must be, for people.
const FIT: &str = "it must be durable, classic or quorum (no stream), not exclusive, not auto-delete, without x-expires, and what it \
     drops (x-max-length, x-message-ttl) must go to its .dlx; look with `rabbitmqctl list_queues name type durable auto_delete \
     arguments policy`; delete it when it is empty and run `oncely topology apply`, name its further arguments in queue_arguments, or \
     set declare = false where somebody else declares it so that all this holds";

/// Does the broker answer; and are the consumers' queues there, and fit?
pub(crate) async fn rabbitmq(config: &Config, queues: bool, found: &mut Preflight) {
    let server = masked(&config.rabbitmq.url);
    let connection = match connect(&config.rabbitmq, "oncely preflight").await {
        Ok(connection) => connection,
        Err(error) => {
            match error.reply_code() {
                // ACCESS_REFUSED, NOT_ALLOWED: user, password or virtual host.
                Some(403 | 530) => {
                    found
                        .problems
                        .add("rabbitmq.url", format!("{server}: user, password or virtual host is refused"));
                }
                _ => found.unreachable.push(format!("RabbitMQ at {server}: {error}")),
            }
            return;
        }
    };
    for consumer in config.consumers.iter().filter(|_| queues) {
        let place = format!("consumers.{}.queue", consumer.name);
        for topology in Topology::of(consumer) {
            match topology.inspect(&connection, config.rabbitmq.timeout).await {
                Ok(report) => {
                    let missing = |what: &str, names: &[String]| {
                        (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")))
                    };
                    let all: Vec<String> = [
                        missing("queues", &report.missing_queues),
                        missing("exchanges", &report.missing_exchanges),
                    ]
                    .into_iter()
                    .flatten()
                    .collect();
                    if !all.is_empty() {
                        let what =
                            format!("missing at {server}: {}; run `oncely topology apply`", all.join("; "));
                        found.problems.add(&place, what);
                    }
                    if !report.missing_sources.is_empty() {
                        let names = report.missing_sources.join(", ");
                        let place = format!("consumers.{}.bindings", consumer.name);
                        found.problems.add(place, format!("there is no exchange {names} at {server}"));
                    }
                    if !report.unfit_queues.is_empty() {
                        let names = report.unfit_queues.join(", ");
                        let what = format!(
                            "{names} at {server}: not as Oncely declares it, or in another's use; {FIT}"
                        );
                        found.problems.add(&place, what);
                    }
                    if !report.unseen_queues.is_empty() {
                        let names = report.unseen_queues.join(", ");
                        let what = format!(
                            "{names}: this user may not declare it, so nobody knows whether it is fit: {FIT}"
                        );
                        found.warnings.push((place.clone(), what));
                    }
                }
                Err(error @ AmqpError::Broker(_)) if error.reply_code() == Some(403) => {
                    found.problems.add(
                        &place,
                        format!("{server}: no permission for {} or its companions", topology.queue()),
                    );
                }
                Err(error @ AmqpError::Broker(_)) if error.reply_code() == Some(406) => {
                    found.problems.add(&place, format!("{server}: {error}"));
                }
                Err(error) => {
                    found.unreachable.push(format!("RabbitMQ at {server}: {error}"));
                    return;
                }
            }
        }
    }
    found.fine.push(("RabbitMQ".to_owned(), server));
    if let Err(error) = connection.close(200, "done".into()).await {
        tracing::debug!(error = %error, "closing a connection to RabbitMQ failed");
    }
}
