//! What is noted of a batch while it is at work, and the spans that are made of it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use opentelemetry::trace::{Event, Link, SpanContext, SpanKind};

use super::consumer_spans::{ConsumerSpans, destination};
use super::span::{Clocks, context, failed, link, number, sender, span};
use crate::fault::Fault;
use crate::identity::IdentityPart;
use crate::message::RawMessage;
use crate::metrics::Stage;
use crate::outcome::Outcome;

/// The SDKs and receivers take no more, and drop the rest without a word.
const LINKS: usize = 128;

/// Stages and setbacks that are noted: a batch that is told apart has many, and one that waits for a server any number.
const NOTED: usize = 64;

/// A stage that took less than this was left out.
const SHORTEST: Duration = Duration::from_micros(1);

/// A batch at work; nothing at all without an endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct BatchTrace(Option<Arc<Noted>>);

/// A message that has a span, or has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct MessageTrace(Option<Arc<Noted>>);

/// A message that is settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettledMessage<'a> {
    pub(crate) message: &'a RawMessage,
    /// Its number on its channel.
    pub(crate) tag: u64,
    pub(crate) tenant: Option<&'a IdentityPart>,
    pub(crate) key: Option<&'a IdentityPart>,
    pub(crate) outcome: &'a Outcome,
    pub(crate) arrived: Instant,
}

#[derive(Debug)]
struct Noted {
    consumer: Arc<ConsumerSpans>,
    clocks: Clocks,
    messages: usize,
    /// Made for the first message that has a span.
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

impl Noted {
    fn note(&self, note: impl FnOnce(&mut Notes)) {
        note(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn context(&self) -> &SpanContext {
        self.context.get_or_init(|| context(None))
    }
}

impl BatchTrace {
    pub(super) fn new(consumer: Option<&Arc<ConsumerSpans>>, messages: usize) -> Self {
        Self(consumer.map(|consumer| {
            Arc::new(Noted {
                consumer: Arc::clone(consumer),
                clocks: Clocks::now(),
                messages,
                context: OnceLock::new(),
                notes: Mutex::default(),
            })
        }))
    }

    /// It has passed a stage that began then and took so long.
    pub(crate) fn stage(&self, stage: Stage, began: Instant, took: Duration) {
        if let Some(noted) = self.0.as_ref().filter(|_| took >= SHORTEST) {
            noted.note(|notes| match notes.stages.len() < NOTED {
                true => notes.stages.push((stage, began, took)),
                false => notes.left_out += 1,
            });
        }
    }

    /// A transaction of it failed.
    pub(crate) fn setback(&self, fault: &Fault) {
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

    /// What became of a message is committed: whether it has a span is decided here.
    pub(crate) fn message(&self, message: &RawMessage, outcome: &Outcome, arrived: Instant) -> MessageTrace {
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

    /// All of it that can be settled at once is. Its span is made, where one of its messages has one; and the stages'.
    pub(crate) fn end(self) {
        let Some(noted) = self.0 else { return };
        let Some(batch) = noted.context.get() else { return };
        let Noted { consumer, clocks, messages, .. } = &*noted;
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
            let context = context(Some(batch));
            consumer.tracer.push(span(context, Some(batch), kind, stage.as_str(), times, attributes));
        }
    }
}

/// What a stage is to whom it asks.
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
    /// Does it have one?
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// The message is settled now. Its span is made; a duplicate's after the first run has been looked up, beside everything else.
    pub(crate) fn settled(&self, settled: &SettledMessage<'_>) {
        let Some(noted) = &self.0 else { return };
        let SettledMessage { message, tag, tenant, key, outcome, arrived } = *settled;
        let Noted { consumer, clocks, .. } = &**noted;
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
        let context = context(parent.as_ref());
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
                failed(&mut span, rejection.reason.as_str());
            }
            Outcome::Retried { code, .. } => {
                // The SQLSTATE, where PostgreSQL reported the failure; what the handler says in words is not told.
                failed(&mut span, code.clone().unwrap_or_else(|| "handler_failed".to_owned()));
            }
            _ => {}
        }
        consumer.tracer.push(span);
    }

    /// So many messages were acknowledged together, this one among them.
    pub(crate) fn acknowledged(&self, queue: &str, messages: usize, asked: Instant, sent: bool) {
        let Some(noted) = &self.0 else { return };
        let batch = noted.context();
        let times = (noted.clocks.wall(asked), noted.clocks.wall(Instant::now()));
        let consumer = &noted.consumer;
        let contexts = (context(Some(batch)), batch);
        consumer.tracer.push(consumer.acknowledged(contexts, queue, messages, times, sent));
    }
}
