//! Checks that the broker answers, and that the consumers' queues exist and are fit.

use std::time::Duration;

use lapin::Connection;

use oncely_amqp::{AmqpError, Topology, TopologyReport, connect};
use oncely_config::Config;
use oncely_process::preflight::{CheckFindings, RABBITMQ};

/// Requirements of a queue, as an error text.
const QUEUE_REQUIREMENTS: &str = "it must be durable, classic or quorum (no stream), not exclusive, not auto-delete, without x-expires, and what it \
     drops (x-max-length, x-message-ttl) must go to its .dlx; look with `rabbitmqctl list_queues name type durable auto_delete \
     arguments policy`; delete it when it is empty and run `oncely topology apply`, name its further arguments in queue_arguments, or \
     set declare = false if another program declares it with these properties";

/// Connects to RabbitMQ, and reports the protection of the connection. `None` after an error of the connection, which is a finding.
pub(crate) async fn connect_and_check(config: &Config, findings: &mut CheckFindings) -> Option<Connection> {
    let server = config.rabbitmq.redacted();
    match connect(&config.rabbitmq, "oncely preflight").await {
        Ok(connection) => {
            findings.add_read("mq.reach", server);
            if let Ok(tls) = config.rabbitmq.amqp_tls() {
                RABBITMQ.report_protection(tls.as_ref(), config.rabbitmq.allow_plaintext, findings);
            }
            Some(connection)
        }
        Err(error) => {
            if let Some(fault) = error.tls_fault(&config.rabbitmq) {
                RABBITMQ.report_fault(fault, &server, &error.to_string(), findings);
                return None;
            }
            match error.reply_code() {
                // ACCESS_REFUSED: wrong user or password.
                Some(403) => {
                    let text = format!("{server}: user or password is refused ({error})");
                    findings.add_error("mq.reach", "rabbitmq.url", text);
                }
                // NOT_ALLOWED: also at a limit of connections, or if the virtual host does not exist yet.
                Some(530) => findings.add_unreachable(
                    "mq.reach",
                    format!(
                        "RabbitMQ at {server}: the virtual host can't be entered ({error}): it is not there (`rabbitmqctl list_vhosts`), \
                         the user has no permissions in it (`rabbitmqctl list_permissions`), or a limit of connections is reached"
                    ),
                ),
                _ => findings.add_unreachable("mq.reach", format!("RabbitMQ at {server}: {error}")),
            }
            None
        }
    }
}

/// Closes the connection gracefully; waits up to two seconds for the broker's answer.
pub(crate) async fn close(connection: Connection) {
    match tokio::time::timeout(Duration::from_secs(2), connection.close(200, "done".into())).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(error = %error, "closing a connection to RabbitMQ failed"),
        Err(_) => tracing::debug!("a connection to RabbitMQ was closed without an answer"),
    }
}

/// Checks the queues and exchanges of all consumers, with `limit` for each response. Returns the state of each queue, with its consumer, as
/// far as the broker answered.
pub(crate) async fn check_queues(
    config: &Config,
    connection: &Connection,
    limit: Duration,
    findings: &mut CheckFindings,
) -> Vec<(String, Topology, TopologyReport)> {
    let server = config.rabbitmq.redacted();
    let mut reports = Vec::new();
    for consumer in &config.consumers {
        for topology in Topology::for_consumer(consumer) {
            let subject = format!("consumers.{}.queue", consumer.name);
            match topology.inspect(connection, limit).await {
                Ok(report) => {
                    report_unfit(&topology, &report, &server, &subject, findings);
                    if !report.missing_sources.is_empty() {
                        let names = report.missing_sources.join(", ");
                        let subject = format!("consumers.{}.bindings", consumer.name);
                        findings.add_error(
                            "mq.bindings",
                            subject,
                            format!("there is no exchange {names} at {server}"),
                        );
                    }
                    findings.add_read(
                        "mq.bindings",
                        format!("{}: exchanges of {} bindings", topology.queue(), consumer.bindings.len()),
                    );
                    reports.push((consumer.name.as_str().to_owned(), topology, report));
                }
                Err(error @ AmqpError::Broker(_)) if error.reply_code() == Some(403) => {
                    let text = format!("{server}: no permission for {} or its companions", topology.queue());
                    findings.add_error("mq.user", subject, text);
                }
                Err(error @ AmqpError::Broker(_)) if error.reply_code() == Some(406) => {
                    findings.add_error("mq.queue", subject, format!("{server}: {error}"));
                }
                Err(error) => {
                    findings.add_unreachable("mq.reach", format!("RabbitMQ at {server}: {error}"));
                    return reports;
                }
            }
        }
    }
    reports
}

/// Finds the check that covers a queue or an exchange.
fn find_covering_check(topology: &Topology, name: &str) -> &'static str {
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

/// The checks of queues and exchanges.
const CHECKS: [&str; 4] = ["mq.queue", "mq.dlq", "mq.dlx", "mq.retry"];

/// Reports the missing, unfit and unseen queues and exchanges of a topology.
fn report_unfit(
    topology: &Topology,
    report: &TopologyReport,
    server: &str,
    subject: &str,
    findings: &mut CheckFindings,
) {
    for check in CHECKS {
        let join_names = |names: &[String]| {
            let names = names.iter().filter(|name| find_covering_check(topology, name) == check);
            names.map(String::as_str).collect::<Vec<_>>().join(", ")
        };
        let ready = match check {
            "mq.queue" => report.ready,
            "mq.dlq" => report.dead,
            _ => None,
        };
        let ready = ready.map(|ready| format!(", {ready} messages are ready")).unwrap_or_default();
        findings.add_read(check, format!("{}: looked for, and declared once more{ready}", topology.queue()));
        let (queues, exchanges) = (join_names(&report.missing_queues), join_names(&report.missing_exchanges));
        let missing = [("queues", queues), ("exchanges", exchanges)];
        let missing: Vec<String> = missing
            .into_iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(kind, names)| format!("{kind} {names}"))
            .collect();
        if !missing.is_empty() {
            let text = format!("missing at {server}: {}; run `oncely topology apply`", missing.join("; "));
            findings.add_error(check, subject, text);
        }
        let unfit = join_names(&report.unfit_queues);
        if !unfit.is_empty() {
            let text = format!(
                "{unfit} at {server}: not as Oncely declares it, or in another's use; {QUEUE_REQUIREMENTS}"
            );
            findings.add_error(check, subject, text);
        }
        let unseen = join_names(&report.unseen_queues);
        if !unseen.is_empty() {
            let text = format!(
                "{unseen}: this user may not declare it, so it was not compared: {QUEUE_REQUIREMENTS}"
            );
            findings.add(check, super::Verdict::Skipped, subject, text);
        }
    }
    findings.add_read("mq.user", format!("{}: what it may look at and declare", topology.queue()));
}
