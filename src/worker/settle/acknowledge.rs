//! Acknowledgements.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crate::amqp::Delivery;
use crate::failpoint::step;
use crate::metrics::Stage;
use crate::outcome::Outcome;
use crate::worker::shared::Shared;

/// Acknowledges, channel by channel. An acknowledgement that does not arrive costs a redelivery, nothing else.
pub(super) async fn acknowledge(shared: &Shared, settled: impl IntoIterator<Item = (&Delivery, &Outcome)>) {
    let mut by_channel = HashMap::new();
    let mut completed = false;
    let began = Instant::now();
    let now = shared.clock.now();
    for (delivery, outcome) in settled {
        shared.counters.settled(outcome, began.saturating_duration_since(delivery.arrived));
        if let (true, Some(published_at)) = (outcome.completes(), delivery.message.properties.timestamp) {
            shared.counters.metrics.age.record((now - published_at).to_std().unwrap_or_default());
        }
        completed |= outcome.completes();
        by_channel
            .entry(Arc::as_ptr(&delivery.channel).addr())
            .or_insert_with(|| (Arc::clone(&delivery.channel), Vec::new()))
            .1
            .push(delivery.tag);
    }
    if completed {
        shared.health.completed(now);
    }
    for (channel, tags) in by_channel.into_values() {
        let messages = tags.len();
        let is_stale = channel.is_over();
        step("worker.ack.before");
        let settled = channel.settle(tags).await;
        step("worker.ack.after");
        shared.counters.metrics.acknowledged(messages, !is_stale && settled.is_ok());
        if let Err(error) = settled {
            tracing::debug!(consumer = %shared.consumer.name, error = %error, "an acknowledgement did not arrive");
        }
    }
    shared.counters.metrics.stage(Stage::Settle, began.elapsed());
}
