//! Spans of events that are published to RabbitMQ.

use std::sync::Arc;
use std::time::Instant;

use chrono::{DateTime, Utc};
use opentelemetry::KeyValue;
use opentelemetry::trace::SpanKind;
use serde::Deserialize;

use super::span::{Clocks, new_context, new_link, new_span, set_error, to_i64, to_span_context};
use super::tracer::Tracer;
use oncely_config::SpanParent;
use oncely_core::trace_parent::TraceParent;
use oncely_postgres::TakenEvent;

/// Traces of a relay's events; empty without an endpoint.
#[derive(Clone, Debug, Default)]
pub struct EventTraces(pub(super) Option<Arc<Tracer>>);

/// Trace context of the span that created an event, in its headers, which are published unchanged.
#[derive(Debug, Default, Deserialize)]
struct Creation<'a> {
    #[serde(borrow, default)]
    traceparent: Option<&'a str>,
    #[serde(borrow, default)]
    tracestate: Option<&'a str>,
}

impl EventTraces {
    /// Exports the span of an event, unless the event gets none. `failure`: reason why it was not published, `None` if it was. `began`:
    /// time at which its publishing began; `taken_at`: time at which its batch was taken, by the database's clock.
    pub fn record_publish(
        &self,
        event: &TakenEvent,
        taken_at: DateTime<Utc>,
        began: Instant,
        failure: Option<&'static str>,
    ) {
        let Some(tracer) = &self.0 else { return };
        // Headers with values of other types have no valid trace context.
        let headers = event.headers.as_deref().filter(|text| text.contains("traceparent"));
        let creation: Creation<'_> =
            headers.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let parent = creation.traceparent.and_then(TraceParent::parse);
        let wait = (taken_at - event.created_at).to_std().unwrap_or_default();
        // A long wait is not unusual: the event may have been scheduled.
        if !tracer.select(parent.map(|parent| parent.sampled), || failure.is_some()) {
            return;
        }
        let creator = parent.and_then(|parent| to_span_context(parent, creation.tracestate));
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
            KeyValue::new("messaging.message.body.size", to_i64(event.payload.as_ref().map_or(0, Vec::len))),
            KeyValue::new("oncely.outbox.wait_seconds", wait.as_secs_f64()),
            KeyValue::new("oncely.attempt", i64::from(event.attempts.saturating_add(1))),
        ];
        let selected = tracer.settings.attributes;
        if selected.tenant {
            attributes.push(KeyValue::new("oncely.tenant", event.tenant.clone()));
        }
        if selected.routing_key && !event.routing_key.is_empty() {
            let name = "messaging.rabbitmq.destination.routing_key";
            attributes.push(KeyValue::new(name, event.routing_key.clone()));
        }
        if selected.message_id {
            let id = event.message_id.clone().unwrap_or_else(|| event.id.to_string());
            attributes.push(KeyValue::new("messaging.message.id", id));
        }
        let parent = creator.as_ref().filter(|_| tracer.settings.parent == SpanParent::Producer);
        let name = format!("publish {exchange}");
        let mut span = new_span(new_context(parent), parent, SpanKind::Client, name, times, attributes);
        if let Some(creator) = creator {
            span.links.links.push(new_link(creator, "creation"));
        }
        if let Some(reason) = failure {
            set_error(&mut span, reason);
        }
        tracer.push(span);
    }
}
