//! The broker: `mq.*`. First by AMQP, then by its HTTP API.

use std::time::Duration;

use super::scope::CheckSelection;
use super::words::format_duration;
use super::{broker_api, queues};
use oncely_amqp::{Management, PublishAcceptance, Topology, TopologyReport, connect, probe};
use oncely_config::Config;
use oncely_process::preflight::CheckFindings;

/// Runs the checks of RabbitMQ: for a starting process those of the queues alone, otherwise also those of the nodes, publishing and the
/// HTTP API.
pub(super) async fn run_checks(
    config: &Config,
    scope: &CheckSelection,
    limit: Duration,
    with_queues: bool,
    findings: &mut CheckFindings,
) {
    let Some(connection) = queues::connect_and_check(config, findings).await else { return };
    let reports = match with_queues {
        true => queues::check_queues(config, &connection, limit, findings).await,
        false => Vec::new(),
    };
    queues::close(connection).await;
    if scope.at_start {
        return;
    }
    check_nodes(config, findings).await;
    check_subscriptions(&reports, findings);
    check_publishing(config, limit, &reports, findings).await;
    match Management::open(&config.rabbitmq, limit) {
        Ok(management) => broker_api::run_checks(config, &management, findings).await,
        Err(error) => broker_api::skip(config, &error.to_string(), findings),
    }
}

/// Checks that every node of RabbitMQ answers. Processes need only one, so they don't report a missing one.
async fn check_nodes(config: &Config, findings: &mut CheckFindings) {
    let nodes: Vec<_> = config.rabbitmq.each_node().collect();
    if nodes.len() < 2 {
        return;
    }
    for node in nodes {
        match connect(&node, "oncely doctor").await {
            Ok(connection) => queues::close(connection).await,
            Err(error) => {
                let text = format!("{}: {error}; the other nodes are used", node.redacted());
                findings.add_warning("mq.reach", "rabbitmq.url", text);
            }
        }
    }
}

/// Checks that every work queue with ready messages has a subscription.
fn check_subscriptions(reports: &[(String, Topology, TopologyReport)], findings: &mut CheckFindings) {
    const CHECK: &str = "mq.consumers";
    for (consumer, topology, report) in reports {
        let (Some(ready), Some(subscriptions)) = (report.ready, report.subscriptions) else { continue };
        let queue = topology.queue();
        findings
            .add_read(CHECK, format!("{queue}: {ready} messages are ready, {subscriptions} subscriptions"));
        if ready > 0 && subscriptions == 0 {
            let text = format!("{ready} messages wait in {queue}, which has no subscriber");
            findings.add_error(CHECK, format!("consumers.{consumer}"), text);
        }
    }
}

/// Checks that the broker takes messages, on a connection of its own: a broker with an alarm reads nothing more from one that has
/// published.
async fn check_publishing(
    config: &Config,
    limit: Duration,
    reports: &[(String, Topology, TopologyReport)],
    findings: &mut CheckFindings,
) {
    let connection = match connect(&config.rabbitmq, "oncely doctor").await {
        Ok(connection) => connection,
        Err(error) => return findings.add_skipped("mq.alarms", error.to_string()),
    };
    match probe(&connection, "", limit).await {
        Ok(PublishAcceptance::Takes) => {
            findings.add_read("mq.alarms", "a message to a queue that does not exist came back")
        }
        Ok(PublishAcceptance::Refuses) => {
            findings
                .add_read("mq.alarms", "the broker reads; this user may not publish to the default exchange");
        }
        Ok(PublishAcceptance::Blocked) => {
            let text = "the broker takes no messages (a memory or disk alarm): copies, events and publishers wait; look with \
                        `rabbitmq-diagnostics alarms`";
            findings.add_error("mq.alarms", "rabbitmq.url", text);
            // A graceful close would not be read either.
            return;
        }
        Err(error) => {
            return findings
                .add_skipped("mq.alarms", format!("no answer within {}: {error}", format_duration(limit)));
        }
    }
    for (consumer, topology, report) in reports {
        check_publish_permission(consumer, topology, report, &connection, limit, findings).await;
    }
    queues::close(connection).await;
}

/// Checks that this user may publish copies, by a message to the exchange that routes by a header: without the header it is unroutable.
async fn check_publish_permission(
    consumer: &str,
    topology: &Topology,
    report: &TopologyReport,
    connection: &lapin::Connection,
    limit: Duration,
    findings: &mut CheckFindings,
) {
    const CHECK: &str = "mq.user";
    let exchange = Topology::retry_exchange(topology.queue());
    if !topology.has_retries() || topology.is_observer() || report.missing_exchanges.contains(&exchange) {
        return;
    }
    match probe(connection, &exchange, limit).await {
        Ok(PublishAcceptance::Takes) => {
            findings.add_read(CHECK, format!("{exchange}: a message without a delay came back"))
        }
        Ok(PublishAcceptance::Refuses) => {
            let text =
                format!("may not publish to {exchange}: copies that are to come later can't be published");
            findings.add_error(CHECK, format!("consumers.{consumer}.queue"), text);
        }
        Ok(PublishAcceptance::Blocked) => {}
        Err(error) => findings.add_skipped(CHECK, error.to_string()),
    }
}
