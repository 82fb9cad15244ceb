//! The tasks of a worker's consumers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

use super::nodes::ClusterNodes;
use super::observation::run_observation;
use super::router::route;
use super::settle::settle_copies::settle_copies;
use super::shared::ConsumerContext;
use super::start_lanes::start_lanes;
use super::subscribe::subscribe;

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
    /// Starts a consumer: its subscriptions, and the tasks that work for it; at each of `nodes`, if the tables are spread over nodes.
    pub(super) fn start(&mut self, shared: Arc<ConsumerContext>, nodes: Option<&Arc<ClusterNodes>>) {
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
            match nodes {
                Some(nodes) => {
                    self.lanes.spawn(route(Arc::clone(&shared), Arc::clone(nodes), receiver, capacity));
                }
                None => start_lanes(&shared, receiver, capacity, &mut self.lanes),
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
