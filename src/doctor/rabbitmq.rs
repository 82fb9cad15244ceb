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
    consumers(&reports, found);
    alarms(config, limit, found).await;
    match Management::new(&config.rabbitmq, limit) {
        Ok(management) => broker_api::look(config, &management, found).await,
        Err(error) => broker_api::skip(config, &error.to_string(), found),
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
async fn alarms(config: &Config, limit: Duration, found: &mut Found) {
    const CHECK: &str = "mq.alarms";
    let asked = async {
        let connection = connect(&config.rabbitmq, "oncely doctor").await?;
        let taking = probe(&connection, limit).await;
        match taking {
            // It would not read the good-bye either.
            Ok(Taking::Blocked) => drop(connection),
            _ => preflight::close(connection).await,
        }
        taking
    };
    match asked.await {
        Ok(Taking::Takes) => found.read(CHECK, "a message to a queue that nobody has came back"),
        Ok(Taking::Refuses) => {
            found.read(CHECK, "the broker reads; this user may not publish to the default exchange");
        }
        Ok(Taking::Blocked) => {
            let what = "the broker takes no messages (a memory or disk alarm): copies, events and publishers wait; look with \
                        `rabbitmq-diagnostics alarms`";
            found.error(CHECK, "rabbitmq.url", what);
        }
        Err(error) => found.skipped(CHECK, format!("no answer within {}: {error}", span(limit))),
    }
}
