//! Settles deliveries with the broker: acknowledges them, or hands over the copies that must arrive before that.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::copies::{build_dead_letter_copy, build_retry_copy};
use crate::worker::candidate::{DecidedDelivery, SettledDelivery};
use crate::worker::interrupt::AbandonedBatch;
use crate::worker::shared::ConsumerContext;
use oncely_amqp::ChannelLife;
use oncely_core::outcome::Disposition;
use oncely_failpoint::step;
use oncely_handler::ConsumerHandler;
use oncely_process::metrics::Stage;
use oncely_traces::{BatchTrace, SettledMessage};

/// Settles deliveries with committed outcomes: acknowledges those that need no copy, and hands the others over with their copies. Returns
/// soon, also if the broker does not answer: see [`super::settle_copies`].
pub(crate) async fn settle(
    shared: &ConsumerContext,
    batch: &BatchTrace,
    decided: Vec<DecidedDelivery>,
) -> Result<(), AbandonedBatch> {
    let mut ready = Vec::with_capacity(decided.len());
    let mut pending = Vec::new();
    for mut one in decided {
        let DecidedDelivery { delivery, identity, outcome } = &mut one;
        shared.failures.record_outcome(identity, outcome);
        shared.health.record_outcome(identity, outcome);
        let copy = match outcome.disposition() {
            // Not settled: it comes again with its channel.
            Disposition::Keep => continue,
            Disposition::Ack => None,
            Disposition::Retry(delay) => Some(build_retry_copy(shared, delivery, identity, delay)),
            Disposition::DeadLetter(rejection) => {
                Some(build_dead_letter_copy(shared, delivery, identity, &rejection, outcome))
            }
        };
        if copy.is_some() && matches!(shared.handler, ConsumerHandler::Leased(_)) {
            // Its run is over, and its copy may take long to arrive.
            delivery.park();
        }
        let trace = batch.begin_message(&delivery.message, outcome, delivery.arrived_at);
        let settled = SettledDelivery { decided: one, trace };
        match copy {
            None => ready.push(settled),
            Some(copy) => pending.push((settled, copy)),
        }
    }
    acknowledge(shared, &ready).await;
    drop(ready);
    shared.unsettled.hand_over(&shared.consumer.name, &shared.stop, pending).await
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
    deliveries: impl IntoIterator<Item = &'a SettledDelivery>,
) {
    let mut by_channel = HashMap::new();
    let mut completed = false;
    let began = Instant::now();
    let now = shared.clock.now();
    for one in deliveries {
        let SettledDelivery { decided: DecidedDelivery { delivery, outcome, .. }, trace } = one;
        shared.counters.count_settled(outcome, began.saturating_duration_since(delivery.arrived_at));
        if let (true, Some(published_at)) =
            (outcome.has_completed_key(), delivery.message.properties.timestamp)
        {
            shared.counters.metrics.age.record((now - published_at).to_std().unwrap_or_default());
        }
        completed |= outcome.has_completed_key();
        let of_channel = by_channel.entry(Arc::as_ptr(&delivery.channel).addr()).or_insert_with(|| {
            ChannelAcknowledgements { channel: &delivery.channel, tags: Vec::new(), traced: Vec::new() }
        });
        of_channel.tags.push(delivery.tag);
        if trace.has_span() {
            of_channel.traced.push(one);
        }
    }
    if completed {
        shared.health.record_completion(now);
    }
    for ChannelAcknowledgements { channel, tags, traced } in by_channel.into_values() {
        let messages = tags.len();
        let sent_at = Instant::now();
        let is_stale = channel.is_over();
        step("worker.ack.before");
        let result = channel.settle(tags).await;
        step("worker.ack.after");
        let is_sent = !is_stale && result.is_ok();
        shared.counters.metrics.count_acknowledgements(messages, is_sent);
        if let Err(error) = result {
            tracing::debug!(consumer = %shared.consumer.name, error = %error, "an acknowledgement did not arrive");
        }
        record_spans(&traced, messages, sent_at, is_sent);
    }
    shared.counters.metrics.record_stage(Stage::Settle, began.elapsed());
}

/// Records the spans of deliveries that were acknowledged together.
fn record_spans(traced: &[&SettledDelivery], messages: usize, sent_at: Instant, is_sent: bool) {
    if let Some(SettledDelivery { decided, trace }) = traced.first() {
        trace.record_acknowledgement(&decided.delivery.message.queue, messages, sent_at, is_sent);
    }
    for SettledDelivery { decided: DecidedDelivery { delivery, identity, outcome }, trace } in traced {
        trace.end_message(&SettledMessage {
            message: &delivery.message,
            tag: delivery.tag,
            tenant: identity.tenant.as_ref(),
            key: identity.key.as_ref(),
            outcome,
            arrived_at: delivery.arrived_at,
        });
    }
}
