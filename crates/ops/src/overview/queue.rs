//! Queues of consumers, from the broker.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use futures::{StreamExt as _, TryStreamExt as _};

use oncely_amqp::{AmqpError, Topology, depth};
use oncely_config::{Config, ConsumerSettings, RabbitSettings};

/// A queue with its dead-letter and retry queues, from the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueState {
    pub consumer: String,
    pub queue: String,
    pub ready: Option<u32>,
    pub retrying: u64,
    pub dead: Option<u32>,
    pub subscriptions: Option<u32>,
    pub missing: Vec<String>,
}

/// Number of queues that are queried at the same time: each takes several round trips.
const AT_ONCE: usize = 16;

/// Returns the state of all configured queues.
///
/// # Errors
/// If the broker does not answer.
pub async fn queue_states(
    connection: &lapin::Connection,
    config: &Config,
) -> Result<Vec<QueueState>, AmqpError> {
    let mut states: Vec<BoxFuture<'_, Result<QueueState, AmqpError>>> = Vec::new();
    for consumer in &config.consumers {
        for queue in &consumer.queues {
            states.push(Box::pin(queue_state(connection, &config.rabbitmq, consumer, queue)));
        }
    }
    futures::stream::iter(states).buffered(AT_ONCE).try_collect().await
}

async fn queue_state(
    connection: &lapin::Connection,
    settings: &RabbitSettings,
    consumer: &ConsumerSettings,
    queue: &str,
) -> Result<QueueState, AmqpError> {
    let dead = Topology::dead_letter_queue(queue);
    let mut names = vec![queue.to_owned()];
    // An observed queue has no others around it.
    if !consumer.observes() {
        names.push(dead.clone());
        names.extend(consumer.retry.delays.iter().map(|delay| Topology::retry_queue(queue, *delay)));
    }
    names.dedup();
    let mut found = BTreeMap::new();
    let mut missing = Vec::new();
    for name in names {
        match depth(connection, settings.timeout, &name).await? {
            Some(depth) => {
                found.insert(name, depth);
            }
            None => missing.push(name),
        }
    }
    let work = found.remove(queue);
    let dead = found.remove(&dead);
    Ok(QueueState {
        consumer: consumer.name.as_str().to_owned(),
        queue: queue.to_owned(),
        ready: work.map(|depth| depth.ready),
        retrying: found.values().map(|depth| u64::from(depth.ready)).sum(),
        // An observer has no dead letters, and needs no queue for them.
        dead: dead.map(|depth| depth.ready).or(consumer.observes().then_some(0)),
        subscriptions: work.map(|depth| depth.subscriptions),
        missing,
    })
}
