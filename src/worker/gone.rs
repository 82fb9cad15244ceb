//! Deliveries that are not decided here.

use tokio::time::Instant;

use super::batch::prepare::prepare;
use super::candidate::{Candidate, Known};
use super::intake::arrivals::Taken;
use super::shared::Shared;
use crate::amqp::Delivery;

/// A delivery that has waited aside goes to the end of its queue.
pub(super) fn postponed(shared: &Shared, delivery: Box<Delivery>) -> (Box<Delivery>, Known) {
    match prepare(shared, delivery) {
        Ok(Candidate { delivery, identity, .. }) => {
            shared.progress.leaves(&identity, Instant::now());
            (delivery, Known::from(&identity))
        }
        // It had an identity when it was put aside. If it has none now, it is rejected when it comes again.
        Err(rejected) => (rejected.delivery, rejected.known),
    }
}

/// These come again by another channel. What had waited aside does not wait in this process any more, and counts as its witness nothing
/// that succeeds long after.
pub(super) fn let_go(shared: &Shared, taken: Taken, deliveries: Vec<Box<Delivery>>) {
    if taken == Taken::Arrived {
        return;
    }
    let now = Instant::now();
    for delivery in deliveries {
        if let Ok(candidate) = prepare(shared, delivery) {
            shared.progress.leaves(&candidate.identity, now);
        }
    }
}
