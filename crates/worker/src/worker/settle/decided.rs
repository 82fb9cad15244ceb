//! Settles deliveries with the broker: acknowledges them, or hands over the copies that must arrive before that.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::copies::{dead_letter_copy, retry_copy};
use crate::worker::candidate::{DecidedDelivery, SettledDelivery};
use crate::worker::interrupt::AbandonedBatch;
use crate::worker::shared::ConsumerContext;
use oncely_amqp::ChannelLife;
use oncely_core::outcome::Disposition;
use oncely_failpoint::step;
use oncely_handler::ConsumerHandler;
use oncely_process::metrics::Stage;
use oncely_traces::{BatchTrace, SettledMessage};

/// Settles deliveries with committed outcomes: acknowledges those that need no copy, and hands the rest over with their copies. Returns
/// soon, also if the broker does not answer: see [`super::settle_copies`].
pub(crate) async fn settle(
    shared: &ConsumerContext,
    batch: &BatchTrace,
    decided: Vec<DecidedDelivery>,
) -> Result<(), AbandonedBatch> {
    let mut ready = Vec::with_capacity(decided.len());
    let mut leaving = Vec::new();
    for mut one in decided {
        let DecidedDelivery { delivery, known, outcome } = &mut one;
        shared.failures.note(known, outcome);
        shared.health.note(known, outcome);
        let copy = match outcome.disposition() {
            // Not settled: it comes again with its channel.
            Disposition::Keep => continue,
            Disposition::Ack => None,
            Disposition::Retry(delay) => Some(retry_copy(shared, delivery, known, delay)),
            Disposition::DeadLetter(rejection) => {
                Some(dead_letter_copy(shared, delivery, known, &rejection, outcome))
            }
        };
        if copy.is_some() && matches!(shared.run, ConsumerHandler::Leased(_)) {
            // Its run is over, and its copy may take long to arrive.
            delivery.park();
        }
        let trace = batch.message(&delivery.message, outcome, delivery.arrived);
        let settled = SettledDelivery { decided: one, trace };
        match copy {
            None => ready.push(settled),
            Some(copy) => leaving.push((settled, copy)),
        }
    }
    acknowledge(shared, &ready).await;
    drop(ready);
    shared.unsettled.hand_over(&shared.consumer.name, &shared.stop, leaving).await
}

/// Deliveries that are acknowledged on one channel.
struct ChannelAcknowledgements<'a> {
    channel: &'a Arc<ChannelLife>,
    tags: Vec<u64>,
    /// Deliveries that have a span.
    traced: Vec<&'a SettledDelivery>,
}

/// Acknowledges deliveries, channel by channel. An acknowledgement that does not arrive costs a redelivery, nothing else.
pub(super) async fn acknowledge<'a>(
    shared: &ConsumerContext,
    settled: impl IntoIterator<Item = &'a SettledDelivery>,
) {
    let mut by_channel = HashMap::new();
    let mut completed = false;
    let began = Instant::now();
    let now = shared.clock.now();
    for one in settled {
        let SettledDelivery { decided: DecidedDelivery { delivery, outcome, .. }, trace } = one;
        shared.counters.settled(outcome, began.saturating_duration_since(delivery.arrived));
        if let (true, Some(published_at)) = (outcome.completes(), delivery.message.properties.timestamp) {
            shared.counters.metrics.age.record((now - published_at).to_std().unwrap_or_default());
        }
        completed |= outcome.completes();
        let of_channel = by_channel.entry(Arc::as_ptr(&delivery.channel).addr()).or_insert_with(|| {
            ChannelAcknowledgements { channel: &delivery.channel, tags: Vec::new(), traced: Vec::new() }
        });
        of_channel.tags.push(delivery.tag);
        if trace.is_wanted() {
            of_channel.traced.push(one);
        }
    }
    if completed {
        shared.health.completed(now);
    }
    for ChannelAcknowledgements { channel, tags, traced } in by_channel.into_values() {
        let messages = tags.len();
        let asked = Instant::now();
        let is_stale = channel.is_over();
        step("worker.ack.before");
        let settled = channel.settle(tags).await;
        step("worker.ack.after");
        let sent = !is_stale && settled.is_ok();
        shared.counters.metrics.acknowledged(messages, sent);
        if let Err(error) = settled {
            tracing::debug!(consumer = %shared.consumer.name, error = %error, "an acknowledgement did not arrive");
        }
        trace(&traced, messages, asked, sent);
    }
    shared.counters.metrics.stage(Stage::Settle, began.elapsed());
}

/// Records the spans of deliveries that were acknowledged together.
fn trace(traced: &[&SettledDelivery], messages: usize, asked: Instant, sent: bool) {
    if let Some(SettledDelivery { decided, trace }) = traced.first() {
        trace.acknowledged(&decided.delivery.message.queue, messages, asked, sent);
    }
    for SettledDelivery { decided: DecidedDelivery { delivery, known, outcome }, trace } in traced {
        trace.settled(&SettledMessage {
            message: &delivery.message,
            tag: delivery.tag,
            tenant: known.tenant.as_ref(),
            key: known.key.as_ref(),
            outcome,
            arrived: delivery.arrived,
        });
    }
}
