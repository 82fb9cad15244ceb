//! Messages one after the other, for a test that hands them over without a broker.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::runner::Runner;
use crate::amqp::Delivery;
use crate::handler::lease::ErasedLeasedHandler;
use crate::worker::intake::arrivals::Taken;
use crate::worker::shared::Shared;

/// A consumer whose handler runs under leases.
pub(in crate::worker) struct LeasedTrial(Arc<Runner>);

impl LeasedTrial {
    pub(in crate::worker) fn new(shared: &Arc<Shared>, handler: Arc<dyn ErasedLeasedHandler>) -> Self {
        let told = Arc::clone(shared);
        // A worker would wait for the database; here the delivery ends, and nothing is decided.
        let (_, nothing) = mpsc::channel(1);
        let runner = super::runner(shared, handler, nothing, true, move |fault| {
            told.health.stalled(fault, None);
            told.abandon.cancel();
        });
        Self(runner)
    }

    /// Claims each and runs it, to its end.
    pub(in crate::worker) async fn deliver(&self, deliveries: Vec<Box<Delivery>>) {
        for delivery in deliveries {
            self.0.decide_and_settle(delivery, Taken::Arrived, None).await;
        }
    }
}
