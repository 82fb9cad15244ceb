//! Bindings of the queue of a consumer in `mode = "observe"`: only to exchanges that give it a copy of each message, and take none from the
//! observed queue.

use std::collections::BTreeSet;

use oncely_amqp::{Management, ManagementError, Topology};
use oncely_config::{Config, QueueBinding};

/// Types of exchanges that give a copy to each queue that is bound with a matching key. Others divide messages among their queues
/// (`x-consistent-hash`, `x-random`): an observer bound to one of them would acknowledge messages that no other queue gets. Source:
/// RabbitMQ's documentation of exchanges, and of these plugins.
pub(super) const COPYING_EXCHANGE_TYPES: [&str; 4] = ["direct", "fanout", "topic", "headers"];

/// Resolves the bindings of an observer: the configured ones, otherwise those of the observed queue. Queries the types of their exchanges
/// from the broker's HTTP API.
///
/// # Errors
/// If no bindings are safe: the reason and the remedy, as a sentence.
pub(super) async fn resolve_bindings(
    queue: &str,
    configured: &[QueueBinding],
    config: &Config,
) -> Result<Vec<QueueBinding>, String> {
    let management = Management::open(&config.rabbitmq, config.rabbitmq.timeout).map_err(|error| match error {
        ManagementError::NotSet => format!(
            "rabbitmq.management is not set, so the bindings of {queue} and the types of their exchanges are unknown: \
             set it, and apply again"
        ),
        error => describe_failure(queue, &error),
    })?;
    let bindings = match configured {
        [] => query_bindings(queue, &management).await?,
        configured => configured.to_vec(),
    };
    let exchanges: BTreeSet<&str> = bindings.iter().map(|one| one.exchange.as_str()).collect();
    for exchange in exchanges {
        match management.query_exchange_type(exchange).await {
            Ok(Some(kind)) if COPYING_EXCHANGE_TYPES.contains(&kind.as_str()) => {}
            Ok(Some(kind)) => {
                return Err(format!(
                    "the exchange {exchange} has the type {kind}, which may give a message to one of its queues alone: an observer bound to it \
                     would take messages from {queue}. Do without observing"
                ));
            }
            Ok(None) => return Err(format!("the exchange {exchange} is not there")),
            Err(error) => return Err(describe_failure(queue, &error)),
        }
    }
    Ok(bindings)
}

/// Describes that the bindings could not be read.
fn describe_failure(queue: &str, error: &ManagementError) -> String {
    format!("the bindings of {queue} could not be read ({error}); nothing was declared")
}

/// Queries the bindings of the observed queue from the broker's HTTP API.
async fn query_bindings(queue: &str, management: &Management) -> Result<Vec<QueueBinding>, String> {
    let facts = management.query_bindings(queue).await.map_err(|error| describe_failure(queue, &error))?;
    let return_exchange = Topology::return_exchange(queue);
    let bindings: Vec<_> =
        facts.into_iter().filter(|one| !one.source.is_empty() && one.source != return_exchange).collect();
    if bindings.is_empty() {
        return Err(format!(
            "{queue} is bound to no exchange: messages reach it by its name alone, and no other queue can get a copy of them; have \
             producers publish to an exchange, or do without observing"
        ));
    }
    if let Some(unsupported) = bindings.iter().find(|one| !one.arguments.is_empty()) {
        return Err(format!(
            "{queue} is bound to {} with arguments, which the configuration can't say: do without observing, or name other bindings",
            unsupported.source
        ));
    }
    let of = |source, routing_key| QueueBinding { exchange: source, routing_key };
    Ok(bindings.into_iter().map(|one| of(one.source, one.routing_key)).collect())
}
