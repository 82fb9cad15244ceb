//! Messages one after the other, for a test that hands them over without a broker.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::consume::runner;
use super::runner::Runner;
use crate::worker::intake::aside::BatchOrigin;
use crate::worker::shared::ConsumerContext;
use oncely_amqp::Delivery;
use oncely_handler::lease::ErasedLeasedHandler;

/// A consumer with a handler that runs under leases.
pub(in crate::worker) struct LeasedTrial(Arc<Runner>);

impl LeasedTrial {
    pub(in crate::worker) fn new(
        shared: &Arc<ConsumerContext>,
        handler: Arc<dyn ErasedLeasedHandler>,
    ) -> Self {
        let told = Arc::clone(shared);
        // A worker would wait for the database; here the delivery ends undecided.
        let (_, nothing) = mpsc::channel(1);
        let runner = runner(shared, handler, nothing, true, move |fault| {
            told.health.stalled(fault, None);
            told.abandon.cancel();
        });
        Self(runner)
    }

    /// Claims each message and runs it to its end.
    pub(in crate::worker) async fn deliver(&self, deliveries: Vec<Box<Delivery>>) {
        for delivery in deliveries {
            self.0.decide_and_settle(delivery, BatchOrigin::Arrived, None).await;
        }
    }
}
