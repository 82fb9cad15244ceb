//! Spans, as a receiver of OTLP gets them from the programs.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;

use crate::support::otlp::{Receiver, hex, links, settings, silent, texts};
use crate::support::{World, message};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const OTHER: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "00f067aa0ba902b7";

/// A message of a sender that records its trace, or does not.
fn traced(key: &str, trace: &str, sampled: bool) -> BasicProperties {
    let properties = message("tenant-s3cr3t", key);
    let mut headers = properties.headers().clone().unwrap();
    let parent = format!("00-{trace}-{SPAN}-0{}", u8::from(sampled));
    headers.insert("traceparent".into(), AMQPValue::LongString(parent.into()));
    headers.insert("tracestate".into(), AMQPValue::LongString("vendor=value".into()));
    properties.with_headers(headers)
}

/// A world with a consumer, and what receives its spans.
async fn world(traces: &str, consumer: &str) -> (World, Receiver) {
    let receiver = Receiver::start().await;
    let mut world = World::new().await;
    world.configure(&receiver.settings(traces));
    world.consumer("payments", consumer);
    world.apply_topology().await;
    (world, receiver)
}

async fn completed(world: &mut World, count: i64) {
    world.wait_for("select count(*) from oncely.audit where outcome = 'completed'", count).await;
}

fn error_of(span: &Span) -> Option<String> {
    let status = span.status.clone()?;
    (status.code == StatusCode::Error as i32).then_some(status.message)
}

#[tokio::test]
async fn a_message_whose_sender_records_has_a_span_in_its_batch_that_is_linked_to_the_sender() {
    let headers = "headers = { authorization = \"Bearer t0k3n\" }";
    let (world, receiver) = world(headers, "").await;
    world.publish("payments", traced("key-s3cr3t", TRACE, true), r#"{"card": "payload-s3cr3t"}"#).await;
    let worker = world.start("worker");
    let span = receiver.named("process ", 1).await.remove(0);
    let batch = receiver.named("oncely.batch", 1).await.remove(0);
    let log = world.stopped_log(worker).await;
    let queue = world.queue("payments");
    assert_eq!(span.name, format!("process {queue}"));
    assert_eq!(span.kind, SpanKind::Consumer as i32);
    assert_eq!((span.trace_id.clone(), &span.parent_span_id), (batch.trace_id.clone(), &batch.span_id));
    assert_eq!(links(&span), [format!("producer {TRACE}-{SPAN}")]);
    assert_eq!(span.links[0].trace_state, "vendor=value");
    assert_eq!(error_of(&span), None);
    assert!(span.start_time_unix_nano < span.end_time_unix_nano);
    let attributes = texts(&span.attributes);
    for (name, value) in [
        ("messaging.system", "rabbitmq"),
        ("messaging.operation.name", "process"),
        ("messaging.operation.type", "process"),
        ("messaging.destination.template", &queue),
        ("messaging.message.body.size", "26"),
        ("oncely.consumer", "payments"),
        ("oncely.outcome", "completed"),
        ("oncely.attempt", "1"),
    ] {
        assert_eq!(attributes[name], value, "{name}");
    }
    // The batch: what it did one after another, and the one acknowledgement of all its messages.
    assert_eq!(batch.kind, SpanKind::Internal as i32);
    assert_eq!(links(&batch), [format!("producer {TRACE}-{SPAN}")]);
    assert_eq!(texts(&batch.attributes)["messaging.batch.message_count"], "1");
    let all = receiver.spans();
    let child = |name: &str| {
        let found = all.iter().find(|one| one.name == name && one.parent_span_id == batch.span_id);
        found.unwrap_or_else(|| panic!("no {name} in {all:?}"))
    };
    assert_eq!(texts(&child("one_statement").attributes)["db.system.name"], "postgresql");
    let ack = child(&format!("ack {queue}"));
    assert_eq!(texts(&ack.attributes)["messaging.operation.type"], "settle");
    child("prepare");
    // A receiver is told nothing of what a message says; and the log nothing of the receiver's token.
    assert!(receiver.saw("payments"));
    for secret in ["tenant-s3cr3t", "key-s3cr3t", "payload-s3cr3t"] {
        assert!(!receiver.saw(secret), "{secret}");
    }
    assert_eq!(receiver.senders(), (vec!["Bearer t0k3n".to_owned()], vec!["oncely-worker".to_owned()]));
    assert!(!log.contains("t0k3n"), "{log}");
}

#[tokio::test]
async fn on_request_a_message_is_part_of_its_senders_trace_and_says_whose_it_is() {
    let settings =
        "parent = \"producer\"\nattributes = [\"tenant\", \"key\", \"message_id\", \"routing_key\"]";
    let (world, receiver) = world(settings, "").await;
    world.publish("payments", traced("k", TRACE, true), "{}").await;
    let worker = world.start("worker");
    let span = receiver.named("process ", 1).await.remove(0);
    let batch = receiver.named("oncely.batch", 1).await.remove(0);
    world.stop(worker).await;
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), SPAN.to_owned()));
    assert_eq!(span.trace_state, "vendor=value");
    assert_eq!(links(&span), [format!("batch {}-{}", hex(&batch.trace_id), hex(&batch.span_id))]);
    let attributes = texts(&span.attributes);
    let told = [
        ("oncely.tenant", "tenant-s3cr3t"),
        ("oncely.key", "k"),
        ("messaging.message.id", "k"),
        ("messaging.rabbitmq.destination.routing_key", &world.queue("payments")),
    ];
    assert!(told.iter().all(|(name, value)| attributes[*name] == *value), "{attributes:?}");
}

#[tokio::test]
async fn nothing_is_sent_of_a_message_whose_sender_records_nothing() {
    let (mut world, receiver) = world("", "batch = 1").await;
    let worker = world.start("worker");
    world.publish("payments", traced("unsampled", TRACE, false), "{}").await;
    world.publish("payments", message("acme", "without"), "{}").await;
    completed(&mut world, 2).await;
    world.publish("payments", traced("sampled", OTHER, true), "{}").await;
    receiver.named("process ", 1).await;
    world.stop(worker).await;
    let all = receiver.spans();
    let count = |name: &str| all.iter().filter(|span| span.name.starts_with(name)).count();
    assert_eq!((count("process "), count("oncely.batch"), count("ack ")), (1, 1, 1), "{all:?}");
    assert_eq!(links(&receiver.named("process ", 1).await[0]), [format!("producer {OTHER}-{SPAN}")]);
}

#[tokio::test]
async fn a_share_of_the_messages_without_a_trace_has_spans() {
    let (mut world, receiver) = world("sample = 1.0", "").await;
    world.publish("payments", message("acme", "without"), "{}").await;
    world.publish("payments", traced("unsampled", TRACE, false), "{}").await;
    let worker = world.start("worker");
    completed(&mut world, 2).await;
    world.stop(worker).await;
    assert_eq!(links(&receiver.named("process ", 1).await[0]), [""; 0]);
}

#[tokio::test]
async fn a_duplicate_is_linked_to_the_trace_of_its_first_run() {
    let (mut world, receiver) = world("", "").await;
    let worker = world.start("worker");
    world.publish("payments", traced("k", TRACE, false), "{}").await;
    completed(&mut world, 1).await;
    // Another tenant's key of the same name is another message, and came later.
    world.publish("payments", message("acme", "k"), "{}").await;
    completed(&mut world, 2).await;
    world.publish("payments", traced("k", OTHER, true), "{}").await;
    let span = receiver.named("process ", 1).await.remove(0);
    world.stop(worker).await;
    assert_eq!(
        links(&span),
        [format!("producer {OTHER}-{SPAN}"), format!("first_run {TRACE}-0000000000000000")]
    );
    let attributes = texts(&span.attributes);
    assert_eq!(attributes["oncely.outcome"], "duplicate");
    assert_eq!(attributes["oncely.duplicate.source"], "postgres");
    assert_eq!(attributes["oncely.duplicate_of"], TRACE);
}

#[tokio::test]
async fn what_fails_has_spans_although_its_sender_records_nothing() {
    let (mut world, receiver) = world("", "retry = { delays = [\"100ms\"], max_attempts = 2 }").await;
    let worker = world.start("worker");
    world.publish("payments", traced("works", OTHER, false), "{}").await;
    completed(&mut world, 1).await;
    let body = r#"{"do": "reject"}"#;
    world.publish("payments", traced("rejected", TRACE, false), body).await;
    world.wait_for("select count(*) from oncely.dead_letters", 1).await;
    world.publish("payments", traced("fails", TRACE, false), r#"{"do": "fail_once"}"#).await;
    completed(&mut world, 2).await;
    let spans = receiver.named("process ", 2).await;
    world.stop(worker).await;
    let by = |outcome: &str| {
        let found = spans.iter().find(|span| texts(&span.attributes)["oncely.outcome"] == outcome);
        found.unwrap_or_else(|| panic!("no {outcome} in {spans:?}"))
    };
    let dead = by("dead_lettered");
    assert_eq!(links(dead), [format!("producer {TRACE}-{SPAN}")]);
    assert_eq!(error_of(dead).as_deref(), Some("handler_rejected"));
    let attributes = texts(&dead.attributes);
    assert_eq!(
        (attributes["error.type"].as_str(), attributes["oncely.reason"].as_str()),
        ("handler_rejected", "handler_rejected")
    );
    let retried = by("retried");
    assert_eq!(error_of(retried).as_deref(), Some("P0001"));
    // Of a run as a whole, the batch says with what it failed.
    let batches = receiver.spans().into_iter().filter(|span| span.name == "oncely.batch");
    let setbacks = batches.flat_map(|batch| batch.events).map(|event| texts(&event.attributes));
    assert!(
        setbacks.clone().any(|setback| setback["db.response.status_code"] == "ONC01"),
        "{:?}",
        setbacks.collect::<Vec<_>>()
    );
    // What the handler says in words may say what the message said.
    for words in ["no such account", "account 7", "boom"] {
        assert!(!receiver.saw(words), "{words}");
    }
}

#[tokio::test]
async fn an_event_goes_on_with_the_context_of_its_creator_unchanged() {
    let (mut world, receiver) = world("", "handler = { function = \"app.tell\" }").await;
    let told = world.queue("told");
    world.broker.declare_queue(&told, FieldTable::default()).await.unwrap();
    let function = format!(
        "create function app.tell(message oncely.message) returns jsonb language plpgsql as $$
         begin
             perform oncely.emit('', '{told}', message.payload, cause => message);
             return null;
         end $$"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(function)).execute(&mut world.sql).await.unwrap();
    world.publish("payments", traced("k", TRACE, true), "{}").await;
    world.publish("payments", traced("unsampled", OTHER, false), "{}").await;
    let worker = world.start("worker");
    let relay = world.start("relay");
    let events = world.broker.take_exactly(&told, 2).await.unwrap();
    let span = receiver.named("publish ", 1).await.remove(0);
    world.stop(worker).await;
    world.stop(relay).await;
    let mut parents: Vec<String> = events
        .iter()
        .map(|event| match &event.properties.headers().as_ref().unwrap().inner()["traceparent"] {
            AMQPValue::LongString(text) => text.to_string(),
            other => panic!("{other:?}"),
        })
        .collect();
    parents.sort();
    assert_eq!(parents, [format!("00-{OTHER}-{SPAN}-00"), format!("00-{TRACE}-{SPAN}-01")]);
    assert_eq!(span.name, "publish amq.default");
    assert_eq!(span.kind, SpanKind::Client as i32);
    assert_eq!(links(&span), [format!("creation {TRACE}-{SPAN}")]);
    let attributes = texts(&span.attributes);
    assert_eq!(attributes["messaging.operation.type"], "send");
    assert!(attributes["oncely.outbox.wait_seconds"].parse::<f64>().unwrap() > 0.0, "{attributes:?}");
    assert!(!receiver.saw("tenant-s3cr3t") && !receiver.saw(&told));
}

#[tokio::test]
async fn a_batch_has_no_more_links_than_receivers_take() {
    let (mut world, receiver) = world("", "batch = 256\nlanes = 1\nprefetch = 1024").await;
    let messages: Vec<_> =
        (0..600).map(|key| (traced(&key.to_string(), TRACE, true), b"{}".to_vec())).collect();
    for (properties, body) in messages {
        world.publish_bytes("payments", properties, &body).await;
    }
    let worker = world.start("worker");
    completed(&mut world, 600).await;
    world.stop(worker).await;
    let batches: Vec<Span> =
        receiver.spans().into_iter().filter(|span| span.name == "oncely.batch").collect();
    let sampled =
        |batch: &Span| texts(&batch.attributes)["oncely.batch.sampled_messages"].parse::<usize>().unwrap();
    assert_eq!(batches.iter().map(sampled).sum::<usize>(), 600);
    for batch in &batches {
        assert_eq!(batch.links.len(), sampled(batch).min(128));
        assert_eq!(batch.dropped_links_count, 0);
    }
    assert!(batches.iter().any(|batch| sampled(batch) > 128), "no batch was that large");
    assert_eq!(receiver.spans().iter().filter(|span| span.name.starts_with("process ")).count(), 600);
}

#[tokio::test]
async fn a_receiver_that_refuses_spans_is_named_once_and_so_is_its_return() {
    let (world, receiver) = world("", "").await;
    receiver.refuse(true);
    let worker = world.start("worker");
    for key in 0..3 {
        world.publish("payments", traced(&key.to_string(), TRACE, true), "{}").await;
        let refused = async || match receiver.refused() {
            refused if refused > key => Ok(()),
            refused => Err(format!("{refused} requests were refused")),
        };
        testbed::eventually("one more request is refused", refused).await.unwrap();
    }
    receiver.refuse(false);
    world.publish("payments", traced("taken", OTHER, true), "{}").await;
    world.wait_for_line(&worker, "trace export recovered").await;
    let log = world.stopped_log(worker).await;
    assert_eq!(log.matches("trace export failed").count(), 1, "{log}");
    assert_eq!(log.matches("trace export recovered").count(), 1, "{log}");
    assert_eq!(links(&receiver.named("process ", 1).await[0]), [format!("producer {OTHER}-{SPAN}")]);
}

#[tokio::test]
async fn a_receiver_that_never_answers_delays_no_message() {
    let mut world = World::new().await;
    world.configure(&settings(&silent().await, ""));
    world.consumer("payments", "batch = 16");
    world.apply_topology().await;
    let worker = world.start("worker");
    // More spans than the queue holds, while the first request is still without an answer.
    for key in 0..1_500 {
        world.publish("payments", traced(&key.to_string(), TRACE, true), "{}").await;
    }
    completed(&mut world, 1_500).await;
    world.wait_for_line(&worker, "trace export failed; dropping spans").await;
    for key in 1_500..1_600 {
        world.publish("payments", traced(&key.to_string(), TRACE, true), "{}").await;
    }
    completed(&mut world, 1_600).await;
    let log = world.stopped_log(worker).await;
    assert_eq!(log.matches("trace export failed").count(), 1, "{log}");
    assert_eq!(log.matches("spans were lost").count(), 1, "{log}");
}
