//! The tasks of a worker's consumers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

use super::batch::prepare::read_tenant;
use super::intake::arrivals::Arrivals;
use super::lane::Lane;
use super::leased;
use super::observation::run_observation;
use super::settle::settle_copies::settle_copies;
use super::shared::ConsumerContext;
use super::subscribe::subscribe;
use oncely_amqp::Delivery;

/// Bounds the wait for the broker while connections close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Holds the tasks of all consumers of a worker.
#[derive(Default)]
pub(super) struct Tasks {
    lanes: JoinSet<()>,
    /// Settle the copies that lanes put aside.
    copies: JoinSet<()>,
    subscriptions: JoinSet<()>,
    pub(super) consumers: Vec<Arc<ConsumerContext>>,
}

impl Tasks {
    /// Starts a consumer: its subscriptions, and the tasks that work for it.
    pub(super) fn start(&mut self, shared: Arc<ConsumerContext>) {
        let consumer = &shared.consumer;
        // As much as the broker sends: then sending into it never waits, except after reconnects.
        let capacity = usize::from(consumer.prefetch) * consumer.queues.len();
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        for queue in &consumer.queues {
            self.subscriptions.spawn(subscribe(Arc::clone(&shared), queue.clone(), sender.clone()));
        }
        if consumer.is_observer() {
            self.lanes.spawn(run_observation(Arc::clone(&shared), receiver));
        } else {
            match leased::leased_handler(&shared.handler) {
                Some(handler) => {
                    self.lanes.spawn(leased::consume(Arc::clone(&shared), handler, receiver));
                }
                None => {
                    let arrivals = Arc::new(build_arrivals(&shared, receiver, capacity));
                    for _ in 0..consumer.lanes {
                        self.lanes.spawn(Lane::register(Arc::clone(&shared), Arc::clone(&arrivals)).run());
                    }
                }
            }
            self.copies.spawn(settle_copies(Arc::clone(&shared)));
        }
        self.consumers.push(shared);
    }

    /// Waits until a task ends; returns its name and result. Tasks end only when the worker stops: a lane that is lost keeps its messages
    /// unacknowledged as long as its channel lives, so a worker that lost a lane must not go on. Cancel-safe.
    pub(super) async fn wait_for_task_end(&mut self) -> (&'static str, Result<(), JoinError>) {
        tokio::select! {
            Some(result) = self.lanes.join_next() => ("a lane", result),
            Some(result) = self.copies.join_next() => ("a task beside the lanes", result),
            Some(result) = self.subscriptions.join_next() => ("a subscription", result),
            else => std::future::pending().await,
        }
    }

    /// Waits without a limit until all work that has begun is settled. Returns whether no task failed.
    pub(super) async fn finish(&mut self) -> bool {
        let mut is_clean = true;
        while let Some(ended) = self.lanes.join_next().await {
            is_clean &= ended.is_ok();
        }
        for shared in &self.consumers {
            shared.unsettled.close();
        }
        while let Some(ended) = self.copies.join_next().await {
            is_clean &= ended.is_ok();
        }
        is_clean
    }

    /// Waits until the subscriptions have closed their connections, for up to [`CLOSE_TIMEOUT`].
    pub(super) async fn close(&mut self) {
        let closed = async { while self.subscriptions.join_next().await.is_some() {} };
        if tokio::time::timeout(CLOSE_TIMEOUT, closed).await.is_err() {
            tracing::warn!("no answer from RabbitMQ while closing connections");
        }
    }
}

/// Builds the buffer between a consumer's subscriptions and its lanes.
fn build_arrivals(
    shared: &Arc<ConsumerContext>,
    receiver: mpsc::Receiver<Box<Delivery>>,
    capacity: usize,
) -> Arrivals<Box<Delivery>> {
    let consumer = &shared.consumer;
    let max_messages = usize::try_from(consumer.batch).unwrap_or(usize::MAX);
    let lanes = usize::try_from(consumer.lanes).unwrap_or(usize::MAX);
    // Half of the bytes that deliveries may hold; a quarter may be unsettled.
    let bytes = usize::try_from(consumer.buffer / 2).unwrap_or(usize::MAX);
    let room = usize::from(consumer.prefetch / 2);
    let arrivals =
        Arrivals::new(receiver, max_messages, capacity, lanes, (room, bytes)).with_pace(shared.pace.clone());
    if !consumer.fair {
        return arrivals;
    }
    let shared = Arc::clone(shared);
    arrivals.with_turns(capacity, Box::new(move |delivery| read_tenant(&shared, delivery)), |delivery| {
        delivery.size()
    })
}
