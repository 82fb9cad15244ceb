//! Messages one after the other, for a test that hands them over without a broker.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::consume::start_runner;
use super::runner::Runner;
use crate::worker::intake::aside::BatchOrigin;
use crate::worker::shared::ConsumerContext;
use oncely_amqp::Delivery;
use oncely_handler::lease::ErasedLeasedHandler;

/// A consumer with a handler that runs under leases.
pub(in crate::worker) struct LeasedTrial(Arc<Runner>);

impl LeasedTrial {
    /// Starts the runner of a consumer. A fault that keeps a statement from being answered abandons the delivery.
    pub(in crate::worker) fn start(
        shared: &Arc<ConsumerContext>,
        handler: Arc<dyn ErasedLeasedHandler>,
    ) -> Self {
        let context = Arc::clone(shared);
        // A worker would wait for the database; here the delivery ends undecided.
        let (_, receiver) = mpsc::channel(1);
        let runner = start_runner(shared, handler, receiver, true, move |fault| {
            context.health.record_stall(fault, None);
            context.abandon.cancel();
        });
        Self(runner)
    }

    /// Claims each message and runs it to its end.
    pub(in crate::worker) async fn deliver(&self, deliveries: Vec<Box<Delivery>>) {
        for delivery in deliveries {
            self.0.run_and_settle(delivery, BatchOrigin::Arrived, None).await;
        }
    }
}
