//! Deliveries that are not decided here.

use tokio::time::Instant;

use super::batch::prepare::prepare;
use super::intake::arrivals::Taken;
use super::shared::Shared;
use crate::amqp::Delivery;

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
