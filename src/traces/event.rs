//! The spans of events on their way to RabbitMQ.

use std::sync::Arc;
use std::time::Instant;

use chrono::{DateTime, Utc};
use opentelemetry::KeyValue;
use opentelemetry::trace::SpanKind;
use serde::Deserialize;

use super::span::{Clocks, context, failed, link, number, remote, span};
use super::tracer::Tracer;
use crate::config::SpanParent;
use crate::pg::TakenEvent;
use crate::trace_parent::TraceParent;

/// The traces of a relay's events; nothing at all without an endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventTraces(pub(super) Option<Arc<Tracer>>);

/// What an event's headers say of the span that created it. They go on unchanged.
#[derive(Debug, Default, Deserialize)]
struct Creation<'a> {
    #[serde(borrow, default)]
    traceparent: Option<&'a str>,
    #[serde(borrow, default)]
    tracestate: Option<&'a str>,
}

impl EventTraces {
    /// An event was published, in a wave that began then, or was not, for this reason. `taken`: when its batch was, by the database's clock.
    pub(crate) fn published(
        &self,
        event: &TakenEvent,
        taken: DateTime<Utc>,
        began: Instant,
        failure: Option<&'static str>,
    ) {
        let Some(tracer) = &self.0 else { return };
        // Headers of other kinds of values have no trace context that counts.
        let headers = event.headers.as_deref().filter(|text| text.contains("traceparent"));
        let creation: Creation<'_> =
            headers.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let parent = creation.traceparent.and_then(TraceParent::parse);
        let waited = (taken - event.created_at).to_std().unwrap_or_default();
        // One that was to wait has waited long: that alone is nothing unusual.
        if !tracer.wants(parent.map(|parent| parent.sampled), || failure.is_some()) {
            return;
        }
        let creator = parent.and_then(|parent| remote(parent, creation.tracestate));
        let clocks = Clocks::now();
        let times = (clocks.wall(began), clocks.wall(clocks.began()));
        let exchange = match event.exchange.as_str() {
            "" => "amq.default",
            name => name,
        };
        let mut attributes = vec![
            KeyValue::new("messaging.system", "rabbitmq"),
            KeyValue::new("messaging.operation.name", "publish"),
            KeyValue::new("messaging.operation.type", "send"),
            KeyValue::new("messaging.destination.template", exchange.to_owned()),
            KeyValue::new("messaging.message.body.size", number(event.payload.as_ref().map_or(0, Vec::len))),
            KeyValue::new("oncely.outbox.wait_seconds", waited.as_secs_f64()),
            KeyValue::new("oncely.attempt", i64::from(event.attempts.saturating_add(1))),
        ];
        let told = tracer.settings.attributes;
        if told.tenant {
            attributes.push(KeyValue::new("oncely.tenant", event.tenant.clone()));
        }
        if told.routing_key && !event.routing_key.is_empty() {
            let name = "messaging.rabbitmq.destination.routing_key";
            attributes.push(KeyValue::new(name, event.routing_key.clone()));
        }
        if told.message_id {
            let id = event.message_id.clone().unwrap_or_else(|| event.id.to_string());
            attributes.push(KeyValue::new("messaging.message.id", id));
        }
        let parent = creator.as_ref().filter(|_| tracer.settings.parent == SpanParent::Producer);
        let name = format!("publish {exchange}");
        let mut span = span(context(parent), parent, SpanKind::Client, name, times, attributes);
        if let Some(creator) = creator {
            span.links.links.push(link(creator, "creation"));
        }
        if let Some(reason) = failure {
            failed(&mut span, reason);
        }
        tracer.push(span);
    }
}
