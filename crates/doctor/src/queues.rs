//! Checks that the broker answers, and that the consumers' queues exist and are fit.

use std::time::Duration;

use lapin::Connection;

use oncely_amqp::{AmqpError, Topology, TopologyReport, connect};
use oncely_config::Config;
use oncely_process::preflight::{CheckFindings, RABBITMQ};

/// Requirements of a queue, as an error text.
const FIT: &str = "it must be durable, classic or quorum (no stream), not exclusive, not auto-delete, without x-expires, and what it \
     drops (x-max-length, x-message-ttl) must go to its .dlx; look with `rabbitmqctl list_queues name type durable auto_delete \
     arguments policy`; delete it when it is empty and run `oncely topology apply`, name its further arguments in queue_arguments, or \
     set declare = false if another program declares it with these properties";

pub(crate) async fn reach(config: &Config, found: &mut CheckFindings) -> Option<Connection> {
    let server = config.rabbitmq.shown();
    match connect(&config.rabbitmq, "oncely preflight").await {
        Ok(connection) => {
            found.add_read("mq.reach", server);
            if let Ok(tls) = config.rabbitmq.amqp_tls() {
                RABBITMQ.report_protection(tls.as_ref(), config.rabbitmq.allow_plaintext, found);
            }
            Some(connection)
        }
        Err(error) => {
            if let Some(fault) = error.tls_fault(&config.rabbitmq) {
                RABBITMQ.report_fault(fault, &server, &error.to_string(), found);
                return None;
            }
            match error.reply_code() {
                // ACCESS_REFUSED: wrong user or password.
                Some(403) => {
                    let what = format!("{server}: user or password is refused ({error})");
                    found.error("mq.reach", "rabbitmq.url", what);
                }
                // NOT_ALLOWED: also at a limit of connections, or if the virtual host does not exist yet.
                Some(530) => found.add_unreachable(
                    "mq.reach",
                    format!(
                        "RabbitMQ at {server}: the virtual host can't be entered ({error}): it is not there (`rabbitmqctl list_vhosts`), \
                         the user has no permissions in it (`rabbitmqctl list_permissions`), or a limit of connections is reached"
                    ),
                ),
                _ => found.add_unreachable("mq.reach", format!("RabbitMQ at {server}: {error}")),
            }
            None
        }
    }
}

/// Closes the connection gracefully, with a short limit for a broker that does not answer.
pub(crate) async fn close(connection: Connection) {
    match tokio::time::timeout(Duration::from_secs(2), connection.close(200, "done".into())).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(error = %error, "closing a connection to RabbitMQ failed"),
        Err(_) => tracing::debug!("a connection to RabbitMQ was closed without an answer"),
    }
}

/// Checks the queues and exchanges of all consumers, with `limit` for each answer. Returns the state of each queue, with its consumer, as
/// far as the broker answered.
pub(crate) async fn queues(
    config: &Config,
    connection: &Connection,
    limit: Duration,
    found: &mut CheckFindings,
) -> Vec<(String, Topology, TopologyReport)> {
    let server = config.rabbitmq.shown();
    let mut reports = Vec::new();
    for consumer in &config.consumers {
        for topology in Topology::for_consumer(consumer) {
            let place = format!("consumers.{}.queue", consumer.name);
            match topology.inspect(connection, limit).await {
                Ok(report) => {
                    judge(&topology, &report, &server, &place, found);
                    if !report.missing_sources.is_empty() {
                        let names = report.missing_sources.join(", ");
                        let place = format!("consumers.{}.bindings", consumer.name);
                        found.error(
                            "mq.bindings",
                            place,
                            format!("there is no exchange {names} at {server}"),
                        );
                    }
                    found.add_read(
                        "mq.bindings",
                        format!("{}: exchanges of {} bindings", topology.queue(), consumer.bindings.len()),
                    );
                    reports.push((consumer.name.as_str().to_owned(), topology, report));
                }
                Err(error @ AmqpError::Broker(_)) if error.reply_code() == Some(403) => {
                    let what = format!("{server}: no permission for {} or its companions", topology.queue());
                    found.error("mq.user", place, what);
                }
                Err(error @ AmqpError::Broker(_)) if error.reply_code() == Some(406) => {
                    found.error("mq.queue", place, format!("{server}: {error}"));
                }
                Err(error) => {
                    found.add_unreachable("mq.reach", format!("RabbitMQ at {server}: {error}"));
                    return reports;
                }
            }
        }
    }
    reports
}

/// Returns the check that covers a queue or an exchange.
fn check_of(topology: &Topology, name: &str) -> &'static str {
    let queue = topology.queue();
    if name == queue {
        "mq.queue"
    } else if name == Topology::dead_letter_queue(queue) {
        "mq.dlq"
    } else if name == Topology::dead_letter_exchange(queue) {
        "mq.dlx"
    } else {
        "mq.retry"
    }
}

const CHECKS: [&str; 4] = ["mq.queue", "mq.dlq", "mq.dlx", "mq.retry"];

fn judge(topology: &Topology, report: &TopologyReport, server: &str, place: &str, found: &mut CheckFindings) {
    for check in CHECKS {
        let of = |names: &[String]| {
            let names = names.iter().filter(|name| check_of(topology, name) == check);
            names.map(String::as_str).collect::<Vec<_>>().join(", ")
        };
        let ready = match check {
            "mq.queue" => report.ready,
            "mq.dlq" => report.dead,
            _ => None,
        };
        let ready = ready.map(|ready| format!(", {ready} messages are ready")).unwrap_or_default();
        found.add_read(check, format!("{}: looked for, and declared once more{ready}", topology.queue()));
        let (queues, exchanges) = (of(&report.missing_queues), of(&report.missing_exchanges));
        let missing = [("queues", queues), ("exchanges", exchanges)];
        let missing: Vec<String> = missing
            .into_iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(what, names)| format!("{what} {names}"))
            .collect();
        if !missing.is_empty() {
            let what = format!("missing at {server}: {}; run `oncely topology apply`", missing.join("; "));
            found.error(check, place, what);
        }
        let unfit = of(&report.unfit_queues);
        if !unfit.is_empty() {
            let what = format!("{unfit} at {server}: not as Oncely declares it, or in another's use; {FIT}");
            found.error(check, place, what);
        }
        let unseen = of(&report.unseen_queues);
        if !unseen.is_empty() {
            let what = format!("{unseen}: this user may not declare it, so it was not compared: {FIT}");
            found.add(check, super::Verdict::Skipped, place, what);
        }
    }
    found.add_read("mq.user", format!("{}: what it may look at and declare", topology.queue()));
}
