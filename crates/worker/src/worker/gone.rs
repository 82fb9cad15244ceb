//! Deliveries that leave the worker undecided.

use tokio::time::Instant;

use super::batch::prepare::prepare;
use super::candidate::{Candidate, PartialIdentity};
use super::shared::ConsumerContext;
use oncely_amqp::Delivery;

/// Prepares a delivery that has waited aside for the end of its queue.
pub(super) fn postponed(
    shared: &ConsumerContext,
    delivery: Box<Delivery>,
) -> (Box<Delivery>, PartialIdentity) {
    match prepare(shared, delivery) {
        Ok(Candidate { delivery, identity, .. }) => {
            shared.progress.leaves(&identity, Instant::now());
            (delivery, PartialIdentity::from(&identity))
        }
        // It had an identity when it was put aside. If it has none now, it is rejected when it comes again.
        Err(rejected) => (rejected.delivery, rejected.known),
    }
}

/// Releases deliveries that come again by another channel. Those that have failed do not wait in this process any more: the consumer does not
/// stand still for them.
pub(super) fn abandon_deliveries(shared: &ConsumerContext, deliveries: Vec<Box<Delivery>>) {
    let now = Instant::now();
    for delivery in deliveries {
        if let Ok(candidate) = prepare(shared, delivery) {
            shared.progress.leaves(&candidate.identity, now);
        }
    }
}
