//! Looks whether the servers hold what the configuration says, and reports everything at once.

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
    /// What works, and is not what the configuration says.
    pub(crate) notes: Vec<String>,
    /// What is fine, for people.
    pub(crate) fine: Vec<(String, String)>,
}

impl Preflight {
    /// The cell's secret. Without it: why is among the problems or the unreachable servers.
    pub(crate) async fn read_secret(&mut self, config: &Config, session: &mut Session) -> Option<Vec<u8>> {
        let asked = pg::secret(&mut session.connection);
        match pg::within(config.postgres.patience(), asked).await {
            Ok(secret) => Some(secret),
            Err(error) => {
                let server = masked(&config.postgres.url);
                let what = format!("{server}: oncely.cell.secret can't be read (role oncely_worker)");
                unexpected(self, &what, error);
                None
            }
        }
    }
}

/// Asks PostgreSQL and, for a worker, about its handlers and queues. Changes nothing.
pub(crate) async fn preflight(config: &Config, for_worker: bool) -> Preflight {
    let mut found = Preflight::default();
    postgres(config, for_worker, &mut found).await;
    if for_worker {
        rabbitmq(config, &mut found).await;
    }
    found
}

pub(crate) async fn postgres(config: &Config, for_worker: bool, found: &mut Preflight) {
    let server = masked(&config.postgres.url);
    let mut connection = match config.postgres.connect("oncely preflight").await {
        Ok(connection) => connection,
        Err(error) => {
            let text = error.to_string();
            match classify(error) {
                PgFault::Outage(_) => found.unreachable.push(format!("PostgreSQL at {server}: {text}")),
                PgFault::Fault(fault) => found.problems.add("postgres.url", format!("{server}: {fault}")),
            }
            return;
        }
    };
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
    let mut session = match Session::open(&config.postgres, "oncely preflight").await {
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
    // A relay's role need not see the application's schema.
    for consumer in config.consumers.iter().filter(|_| for_worker) {
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
    found.fine.push(("PostgreSQL".to_owned(), format!("{server}, epoch {}", session.cell.epoch)));
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
        Some(function) if function.fits => None,
        Some(function) => Some(format!("{name} returns {}, and must return {result}", function.returns)),
        None if found.is_empty() => Some(format!("there is no function {name}")),
        None => {
            let (other, _) = signature(!wanted.batch);
            Some(format!("there is no function {name}, but {other}: set batch = {}", !wanted.batch))
        }
    }
}

fn unexpected(found: &mut Preflight, server: &str, error: sqlx::Error) {
    match classify(error) {
        PgFault::Outage(outage) => found.unreachable.push(format!("PostgreSQL at {server}: {outage}")),
        // A server that is too slow for its own limits, most likely: it is waited for.
        PgFault::Fault(fault) if fault.class == FaultClass::Transient => {
            found.unreachable.push(format!("PostgreSQL at {server}: {fault}"));
        }
        PgFault::Fault(fault) => found.problems.add("postgres", format!("{server}: {fault}")),
    }
}

pub(crate) async fn rabbitmq(config: &Config, found: &mut Preflight) {
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
    for consumer in &config.consumers {
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
