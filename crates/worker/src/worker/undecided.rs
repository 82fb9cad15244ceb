//! Deliveries that leave the worker undecided.

use std::time::Duration;

use tokio::time::Instant;

use super::batch::prepare::{ReadingStretch, determine_identity};
use super::candidate::{DecidedDelivery, PartialIdentity};
use super::shared::ConsumerContext;
use oncely_amqp::Delivery;
use oncely_core::extract::UnidentifiedMessage;
use oncely_core::outcome::Outcome;

/// Decides that a delivery that has waited aside goes to the end of its queue, and records that it leaves this process.
pub(super) fn postpone_delivery(shared: &ConsumerContext, mut delivery: Box<Delivery>) -> DecidedDelivery {
    let identity = match determine_identity(shared, &mut delivery) {
        Ok(identity) => {
            shared.progress.record_departure(&identity, Instant::now());
            PartialIdentity::from(&identity)
        }
        // It had an identity when it was put aside. If it has none now, it is rejected when it comes again.
        Err(UnidentifiedMessage { tenant, .. }) => PartialIdentity { tenant, key: None },
    };
    DecidedDelivery { delivery, identity, outcome: Outcome::Postponed { delay: Duration::ZERO } }
}

/// Releases deliveries that come again by another channel. Those that have failed do not wait in this process any more: the consumer does
/// not stand still for them.
pub(super) async fn abandon_deliveries(shared: &ConsumerContext, deliveries: Vec<Box<Delivery>>) {
    let now = Instant::now();
    let mut stretch = ReadingStretch::default();
    for mut delivery in deliveries {
        stretch.add(delivery.message.body.len()).await;
        if let Ok(identity) = determine_identity(shared, &mut delivery) {
            shared.progress.record_departure(&identity, now);
        }
    }
}
