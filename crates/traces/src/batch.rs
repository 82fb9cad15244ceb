//! Notes of a batch at work, and the spans built from them.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use opentelemetry::trace::{Event, Link, SpanContext, SpanKind};

use super::consumer_spans::{ConsumerSpans, destination};
use super::span::{Clocks, find_sender_context, new_context, new_link, new_span, set_error, to_i64};
use oncely_core::fault::Fault;
use oncely_core::identity::IdentityPart;
use oncely_core::message::RawMessage;
use oncely_core::outcome::Outcome;
use oncely_process::metrics::Stage;

/// Maximum number of links of a span: SDKs and receivers drop more silently.
const MAX_LINKS: usize = 128;

/// Maximum number each of noted stages and setbacks: a batch that is split has many, and one that waits for a server any number.
const MAX_NOTES: usize = 64;

/// Minimum duration of a noted stage; a shorter one was skipped.
const MIN_STAGE: Duration = Duration::from_micros(1);

/// Trace of a batch at work; empty without an endpoint.
#[derive(Clone, Debug, Default)]
pub struct BatchTrace(Option<Arc<TracedBatch>>);

/// Trace of a message; empty if it gets no span.
#[derive(Clone, Debug, Default)]
pub struct MessageTrace(Option<Arc<TracedBatch>>);

/// A settled message.
#[derive(Clone, Copy, Debug)]
pub struct SettledMessage<'a> {
    pub message: &'a RawMessage,
    /// Its number on its channel.
    pub tag: u64,
    pub tenant: Option<&'a IdentityPart>,
    pub key: Option<&'a IdentityPart>,
    pub outcome: &'a Outcome,
    pub arrived_at: Instant,
}

#[derive(Debug)]
struct TracedBatch {
    consumer: Arc<ConsumerSpans>,
    clocks: Clocks,
    messages: usize,
    /// Set with the first message that gets a span.
    context: OnceLock<SpanContext>,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    stages: Vec<(Stage, Instant, Duration)>,
    setbacks: Vec<Event>,
    omitted_count: usize,
    links: Vec<Link>,
    sampled_count: usize,
}

impl TracedBatch {
    /// Changes the notes under their lock.
    fn update_notes(&self, update: impl FnOnce(&mut Notes)) {
        update(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the context of the batch's span, created at the first call.
    fn context(&self) -> &SpanContext {
        self.context.get_or_init(|| new_context(None))
    }
}

impl BatchTrace {
    pub(super) fn begin(consumer: Option<&Arc<ConsumerSpans>>, messages: usize) -> Self {
        Self(consumer.map(|consumer| {
            Arc::new(TracedBatch {
                consumer: Arc::clone(consumer),
                clocks: Clocks::now(),
                messages,
                context: OnceLock::new(),
                notes: Mutex::default(),
            })
        }))
    }

    /// Notes a completed stage, with its beginning and duration.
    pub fn record_stage(&self, stage: Stage, began: Instant, took: Duration) {
        if let Some(traced_batch) = self.0.as_ref().filter(|_| took >= MIN_STAGE) {
            traced_batch.update_notes(|notes| match notes.stages.len() < MAX_NOTES {
                true => notes.stages.push((stage, began, took)),
                false => notes.omitted_count += 1,
            });
        }
    }

    /// Notes a failed transaction.
    pub fn record_setback(&self, fault: &Fault) {
        let Some(traced_batch) = &self.0 else { return };
        traced_batch.update_notes(|notes| {
            if notes.setbacks.len() >= MAX_NOTES {
                notes.omitted_count += 1;
                return;
            }
            let mut attributes = vec![KeyValue::new("error.type", fault.class.as_str())];
            if let Some(code) = &fault.code {
                attributes.push(KeyValue::new("db.response.status_code", code.clone()));
            }
            let at = traced_batch.clocks.wall(Instant::now());
            notes.setbacks.push(Event::new("oncely.setback", at, attributes, 0));
        });
    }

    /// Begins the trace of a message if it gets a span, and notes the span of its sender in the batch. To be called when its outcome is
    /// committed.
    pub fn begin_message(
        &self,
        message: &RawMessage,
        outcome: &Outcome,
        arrived_at: Instant,
    ) -> MessageTrace {
        let Some(traced_batch) = &self.0 else { return MessageTrace::default() };
        if !traced_batch.consumer.select(message, outcome, arrived_at) {
            return MessageTrace::default();
        }
        traced_batch.context();
        traced_batch.update_notes(|notes| {
            notes.sampled_count += 1;
            if notes.links.len() < MAX_LINKS
                && let Some(sender) = find_sender_context(message)
            {
                notes.links.push(new_link(sender, "producer"));
            }
        });
        MessageTrace(Some(Arc::clone(traced_batch)))
    }

    /// Ends the batch, of which all that can be settled at once is settled. If one of its messages has a span, exports the spans of the
    /// batch and its stages.
    pub fn end(self) {
        let Some(traced_batch) = self.0 else { return };
        let Some(batch_context) = traced_batch.context.get() else { return };
        let TracedBatch { consumer, clocks, messages, .. } = &*traced_batch;
        let notes = std::mem::take(&mut *traced_batch.notes.lock().unwrap_or_else(PoisonError::into_inner));
        let attributes = vec![
            KeyValue::new("messaging.system", "rabbitmq"),
            KeyValue::new("messaging.batch.message_count", to_i64(*messages)),
            KeyValue::new("oncely.consumer", consumer.consumer.as_str().to_owned()),
            KeyValue::new("oncely.batch.sampled_messages", to_i64(notes.sampled_count)),
            KeyValue::new("oncely.batch.notes_left_out", to_i64(notes.omitted_count)),
        ];
        let times = (clocks.wall(clocks.began()), clocks.wall(Instant::now()));
        let mut batch_span =
            new_span(batch_context.clone(), None, SpanKind::Internal, "oncely.batch", times, attributes);
        batch_span.links.links = notes.links;
        batch_span.events.events = notes.setbacks;
        consumer.tracer.push(batch_span);
        for (stage, began, took) in notes.stages {
            let times = (clocks.wall(began), clocks.wall(began + took));
            let (kind, attributes) = stage_attributes(stage, consumer.is_in_postgres, *messages);
            let context = new_context(Some(batch_context));
            consumer.tracer.push(new_span(
                context,
                Some(batch_context),
                kind,
                stage.as_str(),
                times,
                attributes,
            ));
        }
    }
}

/// Returns a stage's span kind and attributes, by the system that it queries.
fn stage_attributes(stage: Stage, is_in_postgres: bool, messages: usize) -> (SpanKind, Vec<KeyValue>) {
    let of = |system: &'static str| {
        let attributes = vec![
            KeyValue::new("db.system.name", system),
            KeyValue::new("db.query.summary", stage.as_str()),
            KeyValue::new("db.operation.batch.size", to_i64(messages)),
        ];
        (SpanKind::Client, attributes)
    };
    match stage {
        Stage::Claim | Stage::Record | Stage::Commit | Stage::OneStatement => of("postgresql"),
        Stage::Handle if is_in_postgres => of("postgresql"),
        Stage::Precheck => of("redis"),
        Stage::Handle | Stage::Prepare | Stage::Settle => (SpanKind::Internal, Vec::new()),
    }
}

impl MessageTrace {
    /// Returns whether the message gets a span.
    pub fn has_span(&self) -> bool {
        self.0.is_some()
    }

    /// Exports the span of a settled message; that of a duplicate after its first run was looked up in the background.
    pub fn end_message(&self, settled: &SettledMessage<'_>) {
        let Some(traced_batch) = &self.0 else { return };
        let SettledMessage { message, tag, tenant, key, outcome, arrived_at } = *settled;
        let TracedBatch { consumer, clocks, .. } = &**traced_batch;
        let (parent, links) = consumer.find_parent_and_links(message, traced_batch.context());
        let mut attributes = consumer.attributes(message, (tenant, key));
        let tag = i64::try_from(tag).unwrap_or(i64::MAX);
        attributes.push(KeyValue::new("messaging.rabbitmq.message.delivery_tag", tag));
        attributes.push(KeyValue::new("oncely.outcome", outcome.as_str()));
        if let Some(attempt) = outcome.attempt() {
            attributes.push(KeyValue::new("oncely.attempt", i64::from(attempt)));
        }
        let times = (clocks.wall(arrived_at), clocks.wall(Instant::now()));
        let name = format!("process {}", destination(message));
        let context = new_context(parent.as_ref());
        let mut span = new_span(context, parent.as_ref(), SpanKind::Consumer, name, times, attributes);
        span.links.links = links.into_iter().map(|(to, what)| new_link(to, what)).collect();
        match outcome {
            Outcome::Duplicate(source) => {
                span.attributes.push(KeyValue::new("oncely.duplicate.source", source.as_str()));
                if let (Some(tenant), Some(key)) = (tenant, key) {
                    consumer.first_runs.look_up(span, tenant, key);
                    return;
                }
            }
            Outcome::DeadLettered { rejection, .. } => {
                span.attributes.push(KeyValue::new("oncely.reason", rejection.reason.as_str()));
                set_error(&mut span, rejection.reason.as_str());
            }
            Outcome::Retried { code, .. } => {
                // The SQLSTATE, if PostgreSQL reported the failure; the handler's own text is not exported.
                set_error(&mut span, code.clone().unwrap_or_else(|| "handler_failed".to_owned()));
            }
            _ => {}
        }
        consumer.tracer.push(span);
    }

    /// Exports the span of an acknowledgement, of this message and others. `is_sent`: whether its channel was still open.
    pub fn record_acknowledgement(&self, queue: &str, messages: usize, sent_at: Instant, is_sent: bool) {
        let Some(traced_batch) = &self.0 else { return };
        let batch = traced_batch.context();
        let times = (traced_batch.clocks.wall(sent_at), traced_batch.clocks.wall(Instant::now()));
        let consumer = &traced_batch.consumer;
        let contexts = (new_context(Some(batch)), batch);
        consumer.tracer.push(consumer.build_acknowledgement(contexts, queue, messages, times, is_sent));
    }
}
