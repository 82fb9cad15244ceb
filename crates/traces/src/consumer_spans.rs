//! Common data of a consumer's spans.

use std::sync::Arc;
use std::time::Instant;

use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanContext, SpanKind};
use opentelemetry_sdk::trace::SpanData;

use super::first_run::FirstRuns;
use super::span::{find_sender_context, new_span, set_error, to_i64};
use super::tracer::Tracer;
use oncely_config::{SpanAttributes, SpanParent};
use oncely_core::identity::IdentityPart;
use oncely_core::message::RawMessage;
use oncely_core::outcome::Outcome;

/// Common data of a consumer's spans.
#[derive(Debug)]
pub(super) struct ConsumerSpans {
    pub(super) tracer: Arc<Tracer>,
    pub(super) consumer: IdentityPart,
    /// Whether its handler runs in PostgreSQL.
    pub(super) is_in_postgres: bool,
    pub(super) first_runs: FirstRuns,
}

/// Returns a message's source without its routing key, which may name a tenant.
pub(super) fn destination(message: &RawMessage) -> String {
    match message.exchange.as_str() {
        // With the default exchange the routing key is the queue.
        "" => message.queue.clone(),
        exchange => format!("{exchange}:{{routing_key}}:{}", message.queue),
    }
}

impl ConsumerSpans {
    /// Returns whether a message gets a span: its sender records it, or it failed or was slow. See [`Tracer::select`].
    pub(super) fn select(&self, message: &RawMessage, outcome: &Outcome, arrived_at: Instant) -> bool {
        let is_sampled = message.trace_parent().map(|parent| parent.sampled);
        self.tracer.select(is_sampled, || {
            let is_usual = matches!(outcome, Outcome::Completed { .. } | Outcome::Duplicate(_));
            !is_usual || arrived_at.elapsed() >= self.tracer.settings.slow
        })
    }

    /// Finds the parent of a message's span, and its links.
    pub(super) fn find_parent_and_links(
        &self,
        message: &RawMessage,
        batch: &SpanContext,
    ) -> (Option<SpanContext>, Vec<(SpanContext, &'static str)>) {
        let batch = batch.clone();
        match (self.tracer.settings.parent, find_sender_context(message)) {
            (SpanParent::Link, sender) => {
                (Some(batch), sender.map(|sender| (sender, "producer")).into_iter().collect())
            }
            (SpanParent::Producer, Some(sender)) => (Some(sender), vec![(batch, "batch")]),
            (SpanParent::Producer, None) => (Some(batch), Vec::new()),
        }
    }

    /// Returns the attributes of a message.
    pub(super) fn attributes(
        &self,
        message: &RawMessage,
        (tenant, key): (Option<&IdentityPart>, Option<&IdentityPart>),
    ) -> Vec<KeyValue> {
        let SpanAttributes {
            tenant: has_tenant,
            key: has_key,
            message_id: has_message_id,
            routing_key: has_routing_key,
        } = self.tracer.settings.attributes;
        let mut attributes = vec![
            KeyValue::new("messaging.system", "rabbitmq"),
            KeyValue::new("messaging.operation.name", "process"),
            KeyValue::new("messaging.operation.type", "process"),
            KeyValue::new("messaging.destination.template", destination(message)),
            KeyValue::new("messaging.message.body.size", to_i64(message.body.len())),
            KeyValue::new("oncely.consumer", self.consumer.as_str().to_owned()),
        ];
        let mut add = |is_enabled: bool, name: &'static str, value: Option<&str>| {
            if let (true, Some(value)) = (is_enabled, value) {
                attributes.push(KeyValue::new(name, value.to_owned()));
            }
        };
        add(has_tenant, "oncely.tenant", tenant.map(IdentityPart::as_str));
        add(has_key, "oncely.key", key.map(IdentityPart::as_str));
        add(has_message_id, "messaging.message.id", message.properties.message_id.as_deref());
        let key = Some(message.routing_key.as_str()).filter(|key| !key.is_empty());
        add(has_routing_key, "messaging.rabbitmq.destination.routing_key", key);
        attributes
    }

    /// Builds the span of an acknowledgement.
    pub(super) fn build_acknowledgement(
        &self,
        (context, batch): (SpanContext, &SpanContext),
        queue: &str,
        messages: usize,
        times: (std::time::SystemTime, std::time::SystemTime),
        is_sent: bool,
    ) -> SpanData {
        let attributes = vec![
            KeyValue::new("messaging.system", "rabbitmq"),
            KeyValue::new("messaging.operation.name", "ack"),
            KeyValue::new("messaging.operation.type", "settle"),
            KeyValue::new("messaging.destination.name", queue.to_owned()),
            KeyValue::new("messaging.batch.message_count", to_i64(messages)),
            KeyValue::new("oncely.consumer", self.consumer.as_str().to_owned()),
        ];
        let mut span =
            new_span(context, Some(batch), SpanKind::Client, format!("ack {queue}"), times, attributes);
        if !is_sent {
            // The channel has ended: the messages come again, as duplicates.
            set_error(&mut span, "stale");
        }
        span
    }
}
