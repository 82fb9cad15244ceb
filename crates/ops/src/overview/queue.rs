//! Queues of consumers, from the broker.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use futures::{StreamExt as _, TryStreamExt as _};

use oncely_amqp::{AmqpError, Topology, query_depth};
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

/// Maximum number of queues that are queried at the same time: each takes several round trips.
const MAX_CONCURRENT_QUERIES: usize = 16;

/// Queries the state of all configured queues, several at the same time.
///
/// # Errors
/// If the broker does not answer.
pub async fn query_queue_states(
    connection: &lapin::Connection,
    config: &Config,
) -> Result<Vec<QueueState>, AmqpError> {
    let mut states: Vec<BoxFuture<'_, Result<QueueState, AmqpError>>> = Vec::new();
    for consumer in &config.consumers {
        for queue in &consumer.queues {
            states.push(Box::pin(query_queue_state(connection, &config.rabbitmq, consumer, queue)));
        }
    }
    futures::stream::iter(states).buffered(MAX_CONCURRENT_QUERIES).try_collect().await
}

/// Reads the counters of a queue and of its retry and dead-letter queues.
async fn query_queue_state(
    connection: &lapin::Connection,
    settings: &RabbitSettings,
    consumer: &ConsumerSettings,
    queue: &str,
) -> Result<QueueState, AmqpError> {
    let dead = Topology::dead_letter_queue(queue);
    let mut names = vec![queue.to_owned()];
    // An observed queue has no others around it.
    if !consumer.is_observer() {
        names.push(dead.clone());
        names.extend(consumer.retry.delays.iter().map(|delay| Topology::retry_queue(queue, *delay)));
    }
    names.dedup();
    let mut depths = BTreeMap::new();
    let mut missing = Vec::new();
    for name in names {
        match query_depth(connection, settings.timeout, &name).await? {
            Some(depth) => {
                depths.insert(name, depth);
            }
            None => missing.push(name),
        }
    }
    let main = depths.remove(queue);
    let dead = depths.remove(&dead);
    Ok(QueueState {
        consumer: consumer.name.as_str().to_owned(),
        queue: queue.to_owned(),
        ready: main.map(|depth| depth.ready),
        retrying: depths.values().map(|depth| u64::from(depth.ready)).sum(),
        // An observer has no dead letters, and needs no queue for them.
        dead: dead.map(|depth| depth.ready).or(consumer.is_observer().then_some(0)),
        subscriptions: main.map(|depth| depth.subscriptions),
        missing,
    })
}
