//! Notes of a batch at work, and the spans built from them.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use opentelemetry::trace::{Event, Link, SpanContext, SpanKind};

use super::consumer_spans::{ConsumerSpans, destination};
use super::span::{Clocks, link, new_context, number, sender, set_error, span};
use oncely_core::fault::Fault;
use oncely_core::identity::IdentityPart;
use oncely_core::message::RawMessage;
use oncely_core::outcome::Outcome;
use oncely_process::metrics::Stage;

/// Maximum number of links of a span: SDKs and receivers drop more silently.
const LINKS: usize = 128;

/// Maximum number of noted stages and setbacks: a batch that is split has many, and one that waits for a server any number.
const NOTED: usize = 64;

/// Stages shorter than this were skipped.
const SHORTEST: Duration = Duration::from_micros(1);

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
    pub arrived: Instant,
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
    left_out: usize,
    links: Vec<Link>,
    sampled: usize,
}

impl TracedBatch {
    fn note(&self, note: impl FnOnce(&mut Notes)) {
        note(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn context(&self) -> &SpanContext {
        self.context.get_or_init(|| new_context(None))
    }
}

impl BatchTrace {
    pub(super) fn new(consumer: Option<&Arc<ConsumerSpans>>, messages: usize) -> Self {
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
    pub fn stage(&self, stage: Stage, began: Instant, took: Duration) {
        if let Some(noted) = self.0.as_ref().filter(|_| took >= SHORTEST) {
            noted.note(|notes| match notes.stages.len() < NOTED {
                true => notes.stages.push((stage, began, took)),
                false => notes.left_out += 1,
            });
        }
    }

    /// Notes a failed transaction.
    pub fn setback(&self, fault: &Fault) {
        let Some(noted) = &self.0 else { return };
        noted.note(|notes| {
            if notes.setbacks.len() >= NOTED {
                notes.left_out += 1;
                return;
            }
            let mut attributes = vec![KeyValue::new("error.type", fault.class.as_str())];
            if let Some(code) = &fault.code {
                attributes.push(KeyValue::new("db.response.status_code", code.clone()));
            }
            let at = noted.clocks.wall(Instant::now());
            notes.setbacks.push(Event::new("oncely.setback", at, attributes, 0));
        });
    }

    /// Decides whether a message gets a span. Called when its outcome is committed.
    pub fn message(&self, message: &RawMessage, outcome: &Outcome, arrived: Instant) -> MessageTrace {
        let Some(noted) = &self.0 else { return MessageTrace::default() };
        if !noted.consumer.wants(message, outcome, arrived) {
            return MessageTrace::default();
        }
        noted.context();
        noted.note(|notes| {
            notes.sampled += 1;
            if notes.links.len() < LINKS
                && let Some(sender) = sender(message)
            {
                notes.links.push(link(sender, "producer"));
            }
        });
        MessageTrace(Some(Arc::clone(noted)))
    }

    /// Ends the batch: everything that can be settled at once is. If one of its messages has a span, creates those of the batch and its stages.
    pub fn end(self) {
        let Some(noted) = self.0 else { return };
        let Some(batch) = noted.context.get() else { return };
        let TracedBatch { consumer, clocks, messages, .. } = &*noted;
        let notes = std::mem::take(&mut *noted.notes.lock().unwrap_or_else(PoisonError::into_inner));
        let attributes = vec![
            KeyValue::new("messaging.system", "rabbitmq"),
            KeyValue::new("messaging.batch.message_count", number(*messages)),
            KeyValue::new("oncely.consumer", consumer.consumer.as_str().to_owned()),
            KeyValue::new("oncely.batch.sampled_messages", number(notes.sampled)),
            KeyValue::new("oncely.batch.notes_left_out", number(notes.left_out)),
        ];
        let times = (clocks.wall(clocks.began()), clocks.wall(Instant::now()));
        let mut whole = span(batch.clone(), None, SpanKind::Internal, "oncely.batch", times, attributes);
        whole.links.links = notes.links;
        whole.events.events = notes.setbacks;
        consumer.tracer.push(whole);
        for (stage, began, took) in notes.stages {
            let times = (clocks.wall(began), clocks.wall(began + took));
            let (kind, attributes) = of_stage(stage, consumer.in_postgres, *messages);
            let context = new_context(Some(batch));
            consumer.tracer.push(span(context, Some(batch), kind, stage.as_str(), times, attributes));
        }
    }
}

/// Returns a stage's span kind and attributes, by the system that it queries.
fn of_stage(stage: Stage, in_postgres: bool, messages: usize) -> (SpanKind, Vec<KeyValue>) {
    let of = |system: &'static str| {
        let attributes = vec![
            KeyValue::new("db.system.name", system),
            KeyValue::new("db.query.summary", stage.as_str()),
            KeyValue::new("db.operation.batch.size", number(messages)),
        ];
        (SpanKind::Client, attributes)
    };
    match stage {
        Stage::Claim | Stage::Record | Stage::Commit | Stage::OneStatement => of("postgresql"),
        Stage::Handle if in_postgres => of("postgresql"),
        Stage::Precheck => of("redis"),
        Stage::Handle | Stage::Prepare | Stage::Settle => (SpanKind::Internal, Vec::new()),
    }
}

impl MessageTrace {
    /// Returns whether the message gets a span.
    pub fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Creates the span of a settled message; a duplicate's after its first run was looked up in the background.
    pub fn settled(&self, settled: &SettledMessage<'_>) {
        let Some(noted) = &self.0 else { return };
        let SettledMessage { message, tag, tenant, key, outcome, arrived } = *settled;
        let TracedBatch { consumer, clocks, .. } = &**noted;
        let (parent, links) = consumer.relatives(message, noted.context());
        let mut attributes = consumer.attributes(message, (tenant, key));
        let tag = i64::try_from(tag).unwrap_or(i64::MAX);
        attributes.push(KeyValue::new("messaging.rabbitmq.message.delivery_tag", tag));
        attributes.push(KeyValue::new("oncely.outcome", outcome.as_str()));
        if let Some(attempt) = outcome.attempt() {
            attributes.push(KeyValue::new("oncely.attempt", i64::from(attempt)));
        }
        let times = (clocks.wall(arrived), clocks.wall(Instant::now()));
        let name = format!("process {}", destination(message));
        let context = new_context(parent.as_ref());
        let mut span = span(context, parent.as_ref(), SpanKind::Consumer, name, times, attributes);
        span.links.links = links.into_iter().map(|(to, what)| link(to, what)).collect();
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

    /// Creates the span of an acknowledgement, of this message and others.
    pub fn acknowledged(&self, queue: &str, messages: usize, asked: Instant, sent: bool) {
        let Some(noted) = &self.0 else { return };
        let batch = noted.context();
        let times = (noted.clocks.wall(asked), noted.clocks.wall(Instant::now()));
        let consumer = &noted.consumer;
        let contexts = (new_context(Some(batch)), batch);
        consumer.tracer.push(consumer.acknowledged(contexts, queue, messages, times, sent));
    }
}
