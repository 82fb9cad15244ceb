//! The broker: `mq.*`. First by AMQP, then by its HTTP API.

use std::time::Duration;

use super::scope::CheckSelection;
use super::words::span;
use super::{broker_api, queues};
use oncely_amqp::{Management, PublishAcceptance, Topology, TopologyReport, connect, probe};
use oncely_config::Config;
use oncely_process::preflight::CheckFindings;

pub(super) async fn run_checks(
    config: &Config,
    scope: &CheckSelection,
    limit: Duration,
    with_queues: bool,
    found: &mut CheckFindings,
) {
    let Some(connection) = queues::reach(config, found).await else { return };
    let reports = match with_queues {
        true => queues::queues(config, &connection, limit, found).await,
        false => Vec::new(),
    };
    queues::close(connection).await;
    if scope.at_start {
        return;
    }
    nodes(config, found).await;
    consumers(&reports, found);
    publishing(config, limit, &reports, found).await;
    match Management::new(&config.rabbitmq, limit) {
        Ok(management) => broker_api::run_checks(config, &management, found).await,
        Err(error) => broker_api::skip(config, &error.to_string(), found),
    }
}

/// Checks every node. Processes need only one, so they don't report a missing one.
async fn nodes(config: &Config, found: &mut CheckFindings) {
    let nodes: Vec<_> = config.rabbitmq.each_node().collect();
    if nodes.len() < 2 {
        return;
    }
    for node in nodes {
        match connect(&node, "oncely doctor").await {
            Ok(connection) => queues::close(connection).await,
            Err(error) => {
                let what = format!("{}: {error}; the other nodes are used", node.shown());
                found.warning("mq.reach", "rabbitmq.url", what);
            }
        }
    }
}

fn consumers(reports: &[(String, Topology, TopologyReport)], found: &mut CheckFindings) {
    const CHECK: &str = "mq.consumers";
    for (consumer, topology, report) in reports {
        let (Some(ready), Some(subscriptions)) = (report.ready, report.subscriptions) else { continue };
        let queue = topology.queue();
        found.add_read(CHECK, format!("{queue}: {ready} messages are ready, {subscriptions} subscriptions"));
        if ready > 0 && subscriptions == 0 {
            let what = format!("{ready} messages wait in {queue}, which has no subscriber");
            found.error(CHECK, format!("consumers.{consumer}"), what);
        }
    }
}

/// Checks publishing on its own connection: a broker with an alarm reads nothing more from one that has published.
async fn publishing(
    config: &Config,
    limit: Duration,
    reports: &[(String, Topology, TopologyReport)],
    found: &mut CheckFindings,
) {
    let connection = match connect(&config.rabbitmq, "oncely doctor").await {
        Ok(connection) => connection,
        Err(error) => return found.skipped("mq.alarms", error.to_string()),
    };
    match probe(&connection, "", limit).await {
        Ok(PublishAcceptance::Takes) => {
            found.add_read("mq.alarms", "a message to a queue that does not exist came back")
        }
        Ok(PublishAcceptance::Refuses) => {
            found
                .add_read("mq.alarms", "the broker reads; this user may not publish to the default exchange");
        }
        Ok(PublishAcceptance::Blocked) => {
            let what = "the broker takes no messages (a memory or disk alarm): copies, events and publishers wait; look with \
                        `rabbitmq-diagnostics alarms`";
            found.error("mq.alarms", "rabbitmq.url", what);
            // A graceful close would not be read either.
            return;
        }
        Err(error) => {
            return found.skipped("mq.alarms", format!("no answer within {}: {error}", span(limit)));
        }
    }
    for (consumer, topology, report) in reports {
        permission(consumer, topology, report, &connection, limit, found).await;
    }
    queues::close(connection).await;
}

/// Checks whether this user may publish copies, on the exchange that routes by a header: without it the message is unroutable.
async fn permission(
    consumer: &str,
    topology: &Topology,
    report: &TopologyReport,
    connection: &lapin::Connection,
    limit: Duration,
    found: &mut CheckFindings,
) {
    const CHECK: &str = "mq.user";
    let exchange = Topology::retry_exchange(topology.queue());
    if !topology.has_retries() || topology.observes() || report.missing_exchanges.contains(&exchange) {
        return;
    }
    match probe(connection, &exchange, limit).await {
        Ok(PublishAcceptance::Takes) => {
            found.add_read(CHECK, format!("{exchange}: a message without a delay came back"))
        }
        Ok(PublishAcceptance::Refuses) => {
            let what =
                format!("may not publish to {exchange}: copies that are to come later can't be published");
            found.error(CHECK, format!("consumers.{consumer}.queue"), what);
        }
        Ok(PublishAcceptance::Blocked) => {}
        Err(error) => found.skipped(CHECK, error.to_string()),
    }
}
