//! The broker: `mq.*`. First by AMQP; then what only its HTTP API tells.

use std::time::Duration;

use super::broker_api;
use super::scope::Scope;
use super::words::span;
use crate::amqp::{Management, Taking, Topology, TopologyReport, connect, probe};
use crate::config::Config;
use crate::preflight::{self, Found};

pub(super) async fn look(
    config: &Config,
    scope: &Scope,
    limit: Duration,
    with_queues: bool,
    found: &mut Found,
) {
    let Some(connection) = preflight::reach(config, found).await else { return };
    let reports = match with_queues {
        true => preflight::queues(config, &connection, limit, found).await,
        false => Vec::new(),
    };
    preflight::close(connection).await;
    if scope.at_start {
        return;
    }
    nodes(config, found).await;
    consumers(&reports, found);
    publishing(config, limit, &reports, found).await;
    match Management::new(&config.rabbitmq, limit) {
        Ok(management) => broker_api::look(config, &management, found).await,
        Err(error) => broker_api::skip(config, &error.to_string(), found),
    }
}

/// Of several nodes one is enough to go on, and so none is missed by others.
async fn nodes(config: &Config, found: &mut Found) {
    let nodes: Vec<_> = config.rabbitmq.each_node().collect();
    if nodes.len() < 2 {
        return;
    }
    for node in nodes {
        match connect(&node, "oncely doctor").await {
            Ok(connection) => preflight::close(connection).await,
            Err(error) => {
                let what = format!("{}: {error}; the other nodes are used", node.shown());
                found.warning("mq.reach", "rabbitmq.url", what);
            }
        }
    }
}

fn consumers(reports: &[(String, Topology, TopologyReport)], found: &mut Found) {
    const CHECK: &str = "mq.consumers";
    for (consumer, topology, report) in reports {
        let (Some(ready), Some(subscriptions)) = (report.ready, report.subscriptions) else { continue };
        let queue = topology.queue();
        found.read(CHECK, format!("{queue}: {ready} messages are ready, {subscriptions} subscriptions"));
        if ready > 0 && subscriptions == 0 {
            let what = format!("{ready} messages wait in {queue}, and nobody has subscribed to it");
            found.error(CHECK, format!("consumers.{consumer}"), what);
        }
    }
}

/// On a connection of its own: a broker with an alarm reads nothing more from one that has published.
async fn publishing(
    config: &Config,
    limit: Duration,
    reports: &[(String, Topology, TopologyReport)],
    found: &mut Found,
) {
    let connection = match connect(&config.rabbitmq, "oncely doctor").await {
        Ok(connection) => connection,
        Err(error) => return found.skipped("mq.alarms", error.to_string()),
    };
    match probe(&connection, "", limit).await {
        Ok(Taking::Takes) => found.read("mq.alarms", "a message to a queue that nobody has came back"),
        Ok(Taking::Refuses) => {
            found.read("mq.alarms", "the broker reads; this user may not publish to the default exchange");
        }
        Ok(Taking::Blocked) => {
            let what = "the broker takes no messages (a memory or disk alarm): copies, events and publishers wait; look with \
                        `rabbitmq-diagnostics alarms`";
            found.error("mq.alarms", "rabbitmq.url", what);
            // It would not read the good-bye either.
            return;
        }
        Err(error) => {
            return found.skipped("mq.alarms", format!("no answer within {}: {error}", span(limit)));
        }
    }
    for (consumer, topology, report) in reports {
        permission(consumer, topology, report, &connection, limit, found).await;
    }
    preflight::close(connection).await;
}

/// May this user publish copies? To the one exchange that looks for a header, without which it finds no queue.
async fn permission(
    consumer: &str,
    topology: &Topology,
    report: &TopologyReport,
    connection: &lapin::Connection,
    limit: Duration,
    found: &mut Found,
) {
    const CHECK: &str = "mq.user";
    let exchange = Topology::retry_exchange(topology.queue());
    if !topology.has_retries() || topology.observes() || report.missing_exchanges.contains(&exchange) {
        return;
    }
    match probe(connection, &exchange, limit).await {
        Ok(Taking::Takes) => found.read(CHECK, format!("{exchange}: a message without a delay came back")),
        Ok(Taking::Refuses) => {
            let what =
                format!("may not publish to {exchange}: copies that are to come later can't be published");
            found.error(CHECK, format!("consumers.{consumer}.queue"), what);
        }
        Ok(Taking::Blocked) => {}
        Err(error) => found.skipped(CHECK, error.to_string()),
    }
}
