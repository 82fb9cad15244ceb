//! Common data of a consumer's spans.

use std::sync::Arc;
use std::time::Instant;

use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanContext, SpanKind};
use opentelemetry_sdk::trace::SpanData;

use super::first_run::FirstRuns;
use super::span::{number, sender, set_error, span};
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
    pub(super) in_postgres: bool,
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
    /// Returns whether a message gets a span.
    pub(super) fn wants(&self, message: &RawMessage, outcome: &Outcome, arrived: Instant) -> bool {
        let sampled = message.trace_parent().map(|parent| parent.sampled);
        self.tracer.wants(sampled, || {
            let is_usual = matches!(outcome, Outcome::Completed { .. } | Outcome::Duplicate(_));
            !is_usual || arrived.elapsed() >= self.tracer.settings.slow
        })
    }

    /// Returns the parent of a message's span, and its links.
    pub(super) fn relatives(
        &self,
        message: &RawMessage,
        batch: &SpanContext,
    ) -> (Option<SpanContext>, Vec<(SpanContext, &'static str)>) {
        let batch = batch.clone();
        match (self.tracer.settings.parent, sender(message)) {
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
        let SpanAttributes { tenant: tell_tenant, key: tell_key, message_id, routing_key } =
            self.tracer.settings.attributes;
        let mut attributes = vec![
            KeyValue::new("messaging.system", "rabbitmq"),
            KeyValue::new("messaging.operation.name", "process"),
            KeyValue::new("messaging.operation.type", "process"),
            KeyValue::new("messaging.destination.template", destination(message)),
            KeyValue::new("messaging.message.body.size", number(message.body.len())),
            KeyValue::new("oncely.consumer", self.consumer.as_str().to_owned()),
        ];
        let mut tell = |asked: bool, name: &'static str, value: Option<&str>| {
            if let (true, Some(value)) = (asked, value) {
                attributes.push(KeyValue::new(name, value.to_owned()));
            }
        };
        tell(tell_tenant, "oncely.tenant", tenant.map(IdentityPart::as_str));
        tell(tell_key, "oncely.key", key.map(IdentityPart::as_str));
        tell(message_id, "messaging.message.id", message.properties.message_id.as_deref());
        let key = Some(message.routing_key.as_str()).filter(|key| !key.is_empty());
        tell(routing_key, "messaging.rabbitmq.destination.routing_key", key);
        attributes
    }

    /// Creates the span of an acknowledgement.
    pub(super) fn acknowledged(
        &self,
        (context, batch): (SpanContext, &SpanContext),
        queue: &str,
        messages: usize,
        times: (std::time::SystemTime, std::time::SystemTime),
        sent: bool,
    ) -> SpanData {
        let attributes = vec![
            KeyValue::new("messaging.system", "rabbitmq"),
            KeyValue::new("messaging.operation.name", "ack"),
            KeyValue::new("messaging.operation.type", "settle"),
            KeyValue::new("messaging.destination.name", queue.to_owned()),
            KeyValue::new("messaging.batch.message_count", number(messages)),
            KeyValue::new("oncely.consumer", self.consumer.as_str().to_owned()),
        ];
        let mut span =
            span(context, Some(batch), SpanKind::Client, format!("ack {queue}"), times, attributes);
        if !sent {
            // The channel has ended: the messages come again, as duplicates.
            set_error(&mut span, "stale");
        }
        span
    }
}
