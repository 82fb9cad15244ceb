//! Acknowledgements.

use std::collections::HashMap;
use std::sync::Arc;

use crate::amqp::Delivery;
use crate::failpoint::step;
use crate::outcome::Outcome;
use crate::worker::shared::Shared;

/// Acknowledges, channel by channel. An acknowledgement that does not arrive costs a redelivery, nothing else.
pub(super) async fn acknowledge(shared: &Shared, settled: impl IntoIterator<Item = (&Delivery, &Outcome)>) {
    let mut by_channel = HashMap::new();
    let mut completed = false;
    for (delivery, outcome) in settled {
        shared.counters.settled(outcome);
        completed |= outcome.completes();
        by_channel
            .entry(Arc::as_ptr(&delivery.channel).addr())
            .or_insert_with(|| (Arc::clone(&delivery.channel), Vec::new()))
            .1
            .push(delivery.tag);
    }
    if completed {
        shared.health.completed(shared.clock.now());
    }
    for (channel, tags) in by_channel.into_values() {
        step("worker.ack.before");
        let settled = channel.settle(tags).await;
        step("worker.ack.after");
        if let Err(error) = settled {
            tracing::debug!(consumer = %shared.consumer.name, error = %error, "an acknowledgement did not arrive");
        }
    }
}
