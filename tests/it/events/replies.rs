//! Replies: whoever asks gets the handler's response, and gets it again.

use std::time::Duration;

use futures::StreamExt as _;
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::options::BasicConsumeOptions;
use lapin::types::FieldTable;
use testbed::Redis;

use super::run;
use crate::support::{World, message};

const RESPONDER: &str = r"
create function app.respond(message oncely.message) returns jsonb language plpgsql as $$
begin
    insert into app.effects (tenant, consumer, key) values (message.tenant, message.consumer, message.key);
    if message.payload ->> 'do' = 'reject' then perform oncely.reject('no'); end if;
    return case message.payload ->> 'do'
        when 'nothing' then null
        when 'large' then jsonb_build_object('text', repeat('x', (message.payload ->> 'size')::integer))
        else jsonb_build_object('z', 1.5, 'a', jsonb_build_array('ü', null), 'run', (select count(*) from app.effects))
    end;
end $$";

async fn world(settings: &str) -> (World, String) {
    let mut world = World::new().await;
    run(&mut world, RESPONDER).await;
    world.configure("[relay]\npoll = \"20ms\"\n[events]\nretry = { delays = [\"50ms\"], max_attempts = 6 }");
    world.consumer("ask", &format!("handler = {{ function = \"app.respond\" }}\nreplies = true\n{settings}"));
    world.apply_topology().await;
    let replies = world.queue("replies");
    world.broker.declare_queue(&replies, FieldTable::default()).await.unwrap();
    (world, replies)
}

fn question(key: &str, reply_to: &str, correlation: &str) -> BasicProperties {
    message("acme", key).with_reply_to(reply_to.into()).with_correlation_id(correlation.into())
}

fn text(text: &Option<lapin::types::ShortString>) -> String {
    text.as_ref().map(ToString::to_string).unwrap_or_default()
}

fn ids(reply: &Delivery) -> (String, String) {
    (text(reply.properties.correlation_id()), text(reply.properties.message_id()))
}

#[tokio::test]
async fn a_duplicate_gets_the_same_reply_byte_for_byte_whoever_knows_it() {
    let redis = Redis::start().await.unwrap();
    let (mut world, replies) = world("").await;
    world.with_redis(&redis.url(), "precheck = \"trust\"");
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.publish("ask", question("k", &replies, "first"), "{}").await;
    let first = world.broker.take_exactly(&replies, 1).await.unwrap().remove(0);
    assert_eq!(String::from_utf8_lossy(&first.data), r#"{"a": ["ü", null], "z": 1.5, "run": 1}"#);
    assert_eq!(text(first.properties.content_type()), "application/json");
    world.wait_for("select count(*) from oncely.mirror_queue", 0).await;
    // Known to the mirror by now, and twice in one batch.
    let again = vec![
        (world.queue("ask"), question("k", &replies, "second"), b"{}".to_vec()),
        (world.queue("ask"), question("k", &replies, "second"), b"{}".to_vec()),
        (world.queue("ask"), message("acme", "k"), b"{}".to_vec()),
        (world.queue("ask"), message("acme", "k").with_reply_to(replies.as_str().into()), b"{}".to_vec()),
    ];
    world.broker.publish_all("", again).await.unwrap();
    let more = world.broker.take_exactly(&replies, 3).await.unwrap();
    for reply in &more {
        assert_eq!(reply.data, first.data, "byte for byte");
    }
    let mut named: Vec<_> = more.iter().map(ids).collect();
    named.sort();
    assert_eq!(named[0].0, "", "a question without a correlation id gets its answer, too");
    assert_eq!(named[1], named[2], "the same question: the same message_id");
    assert_ne!(named[1].1, ids(&first).1, "a new question waits for its own answer");
    world.wait_for_ready(&world.queue("ask"), 0).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
    assert_eq!(world.broker.ready(&replies).await.unwrap(), 0, "no reply that nobody asked for");
    world.stop(worker).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn no_response_is_null_and_a_dead_letter_gets_no_reply() {
    let (mut world, replies) = world("").await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.publish("ask", question("rejected", &replies, "1"), r#"{"do": "reject"}"#).await;
    world.wait_for_ready(&format!("{}.dead", world.queue("ask")), 1).await;
    world.publish("ask", question("nothing", &replies, "2"), r#"{"do": "nothing"}"#).await;
    let reply = world.broker.take_exactly(&replies, 1).await.unwrap().remove(0);
    assert_eq!((ids(&reply).0.as_str(), reply.data.as_slice()), ("2", b"null".as_slice()));
    world.wait_for("select count(*) from oncely.events", 0).await;
    assert_eq!(world.broker.ready(&replies).await.unwrap(), 0);
    world.stop(worker).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn without_the_setting_nobody_gets_a_reply() {
    let mut world = World::new().await;
    world.consumer("ask", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("ask", question("k", "anywhere", "1"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.events").await, 0);
}

#[tokio::test]
async fn a_reply_whose_requester_is_gone_is_parked_after_a_few_tries() {
    let (mut world, _) = world("").await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.publish("ask", question("k", "no-such-queue", "1"), "{}").await;
    let parked = "select count(*) from oncely.events where state = 'parked' and reason = 'requester_gone' and attempts = 3";
    world.wait_for(parked, 1).await;
    world.stop(worker).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn names_that_no_queue_can_have_get_no_reply_and_hurt_nobody() {
    let (mut world, replies) = world("").await;
    let worker = world.start("worker");
    let strange = [
        question("nul", "a\0b", "1"),
        question("nul, too", &replies, "a\0b"),
        question("empty", "", "1"),
        question("long", &"ü".repeat(127), &"c".repeat(255)),
    ];
    let batch = strange.into_iter().map(|one| (world.queue("ask"), one, b"{}".to_vec())).collect();
    world.broker.publish_all("", batch).await.unwrap();
    world.wait_for("select count(*) from app.effects", 4).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.events").await, 1);
    assert_eq!(world.count("select octet_length(routing_key)::bigint from oncely.events").await, 254);
}

#[tokio::test]
async fn a_response_over_the_limit_is_refused_with_nothing_of_its_effect() {
    let (mut world, replies) = world("response_limit = 1000").await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    let large = |size: u32| format!(r#"{{"do": "large", "size": {size}}}"#);
    // {"text": ""} is 12 bytes.
    for (key, size) in [("fits", 988), ("large", 989), ("fits, too", 10)] {
        world.publish("ask", question(key, &replies, key), &large(size)).await;
    }
    world.wait_for_ready(&format!("{}.dead", world.queue("ask")), 1).await;
    let mut answered: Vec<_> =
        world.broker.take_exactly(&replies, 2).await.unwrap().iter().map(|reply| ids(reply).0).collect();
    answered.sort();
    assert_eq!(answered, ["fits", "fits, too"]);
    let why =
        "select reason || ': ' || detail from oncely.audit where key = 'large' and outcome = 'dead_lettered'";
    let why = world.text(why).await.unwrap();
    assert!(
        why.starts_with("handler_rejected: the response has 1001 bytes as JSON; the limit is 1000"),
        "{why}"
    );
    assert_eq!(world.count("select count(*) from app.effects where key = 'large'").await, 0);
    world.stop(worker).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn a_large_response_is_stored_compressed_where_the_consumer_says_so() {
    let (mut world, replies) = world("response_limit = 1000\non_large_response = \"compress\"").await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.publish("ask", question("large", &replies, "1"), r#"{"do": "large", "size": 300000}"#).await;
    let reply = world.broker.take_exactly(&replies, 1).await.unwrap().remove(0);
    assert_eq!(reply.data.len(), 300_012);
    let stored = world.count("select pg_column_size(response)::bigint from oncely.idempotency_keys").await;
    assert!(stored < 10_000, "{stored} bytes");
    world.publish("ask", question("large", &replies, "2"), r#"{"do": "large", "size": 300000}"#).await;
    assert_eq!(world.broker.take_exactly(&replies, 1).await.unwrap().remove(0).data, reply.data);
    world.stop(worker).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn a_direct_reply_reaches_whoever_waits_on_his_channel() {
    let (world, _) = world("").await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    let channel = world.broker.channel();
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let mut answers = channel
        .basic_consume("amq.rabbitmq.reply-to".into(), "".into(), options, FieldTable::default())
        .await
        .unwrap();
    world.publish("ask", question("k", "amq.rabbitmq.reply-to", "direct"), "{}").await;
    let answer =
        tokio::time::timeout(Duration::from_secs(30), answers.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(ids(&answer).0, "direct");
    assert!(answer.data.starts_with(b"{\"a\""), "{:?}", answer.data);
    world.stop(worker).await;
    world.stop(relay).await;
}
