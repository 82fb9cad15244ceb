//! Who a message is: consumers, tenants, keys, payloads; and what bad identities get.

use lapin::BasicProperties;
use lapin::ExchangeKind;
use lapin::types::{AMQPValue, FieldTable};

use crate::support::{World, message};

#[tokio::test]
async fn two_consumers_on_one_fan_out_both_see_every_message() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.consumer("mailer", "");
    world.apply_topology().await;
    let exchange = world.queue("events");
    world.broker.declare_exchange(&exchange, ExchangeKind::Fanout).await.unwrap();
    for consumer in ["payments", "mailer"] {
        world.broker.bind(&world.queue(consumer), &exchange, "").await.unwrap();
    }
    let worker = world.start("worker");
    for key in ["a", "b", "a"] {
        world.broker.publish(&exchange, "any", message("acme", key), b"{}").await.unwrap();
    }
    world.wait_for("select count(*) from app.effects", 4).await;
    world.stop(worker).await;
    let seen = "select string_agg(consumer || ':' || key, ' ' order by consumer, key) from app.effects";
    assert_eq!(world.text(seen).await.as_deref(), Some("mailer:a mailer:b payments:a payments:b"));
}

#[tokio::test]
async fn the_same_key_under_two_tenants_runs_twice() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    for tenant in ["acme", "globex", "acme"] {
        world.publish("payments", message(tenant, "order-1"), "{}").await;
    }
    world.wait_for("select count(*) from app.effects", 2).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
    let seen = "select string_agg(tenant, ' ' order by tenant) from app.effects";
    assert_eq!(world.text(seen).await.as_deref(), Some("acme globex"));
}

#[tokio::test]
async fn keys_that_differ_in_a_byte_are_different() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    let long = "x".repeat(255);
    let keys = [
        "a",
        "A",
        "a ",
        " ",
        "\u{e9}",
        "e\u{301}",
        "a\t",
        "a\u{202e}",
        "a\u{1}",
        "a:b",
        "'; drop table x --",
        &long,
    ];
    for key in keys {
        world.publish("payments", message("acme", key), "{}").await;
        world.publish("payments", message("acme", key), "{}").await;
    }
    world.wait_for("select count(*) from app.effects", 12).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(distinct key) from oncely.idempotency_keys").await, 12);
    assert_eq!(world.count("select count(*) from app.effects").await, 12);
}

#[tokio::test]
async fn a_key_with_another_payload_is_dead_lettered_where_postgresql_knows_it() {
    key_conflict(false).await;
}

#[tokio::test]
async fn a_key_with_another_payload_is_dead_lettered_where_redis_knows_it() {
    key_conflict(true).await;
}

async fn key_conflict(with_redis: bool) {
    let mut world = World::new().await;
    if with_redis {
        world.with_redis(&world.urls.redis.clone(), "precheck = \"trust\"");
    }
    world.configure("[audit]\nduplicates = true");
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    let relay = with_redis.then(|| world.start("relay"));
    world.publish("payments", message("acme", "k"), r#"{"amount": 1}"#).await;
    world.wait_for("select count(*) from app.effects", 1).await;
    if with_redis {
        // The same payload again is known to Redis, as soon as the relay has been there.
        world.wait_for("select count(*) from oncely.mirror_queue", 0).await;
        world.publish("payments", message("acme", "k"), r#"{"amount": 1}"#).await;
        world.wait_for("select count(*) from oncely.audit where reason = 'mirror'", 1).await;
    }
    world.publish("payments", message("acme", "k"), r#"{"amount": 2}"#).await;
    let dead = format!("{}.dead", world.queue("payments"));
    let letter = world.broker.take_exactly(&dead, 1).await.unwrap().remove(0);
    world.stop(worker).await;
    if let Some(relay) = relay {
        world.stop(relay).await;
    }
    assert_eq!(reason(&letter), "key_conflict");
    assert_eq!(letter.data, br#"{"amount": 2}"#);
    assert_eq!(world.count("select (payload ->> 'amount')::bigint from app.effects").await, 1);
    assert_eq!(world.count("select count(*) from oncely.audit where reason = 'key_conflict'").await, 1);
}

#[tokio::test]
async fn a_key_with_another_payload_in_the_same_batch_is_a_conflict_too() {
    let mut world = World::new().await;
    // Two lanes would take them in any order.
    world.consumer("payments", "lanes = 1");
    world.apply_topology().await;
    for amount in [1, 1, 2] {
        world.publish("payments", message("acme", "k"), &format!("{{\"amount\": {amount}}}")).await;
    }
    let worker = world.start("worker");
    let dead = format!("{}.dead", world.queue("payments"));
    let letter = world.broker.take_exactly(&dead, 1).await.unwrap().remove(0);
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
    assert_eq!(
        (reason(&letter).as_str(), letter.data.as_slice()),
        ("key_conflict", &br#"{"amount": 2}"#[..])
    );
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
}

#[tokio::test]
async fn a_consumer_may_compare_less_of_the_payload_or_nothing() {
    let mut world = World::new().await;
    world.consumer("canonical", "fingerprint = \"canonical_json\"");
    world.consumer("pointers", "fingerprint = { json_pointers = [\"/amount\"] }");
    world.consumer("lenient", "on_conflict = \"duplicate\"");
    world.apply_topology().await;
    let worker = world.start("worker");
    for consumer in ["canonical", "pointers", "lenient"] {
        world.publish(consumer, message("acme", "k"), r#"{"amount": 1, "at": 5}"#).await;
        world.wait_for(&format!("select count(*) from app.effects where consumer = '{consumer}'"), 1).await;
    }
    world.publish("canonical", message("acme", "k"), r#"{"at":5,"amount":1}"#).await;
    world.publish("pointers", message("acme", "k"), r#"{"amount": 1, "at": 6}"#).await;
    world.publish("lenient", message("acme", "k"), r#"{"amount": 2}"#).await;
    world.publish("pointers", message("acme", "k"), r#"{"amount": 2}"#).await;
    let dead = format!("{}.dead", world.queue("pointers"));
    let letter = world.broker.take_exactly(&dead, 1).await.unwrap().remove(0);
    for consumer in ["canonical", "pointers", "lenient"] {
        world.wait_for_ready(&world.queue(consumer), 0).await;
    }
    world.stop(worker).await;
    assert_eq!(reason(&letter), "key_conflict");
    assert_eq!(world.count("select count(*) from app.effects").await, 3);
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'dead_lettered'").await, 1);
}

#[tokio::test]
async fn every_place_of_an_identity_works() {
    let mut world = World::new().await;
    world.consumer("property", "tenant = \"user_id\"\nkey = { property = \"correlation_id\" }");
    world.consumer("routing", "tenant = { routing_key = 2 }\nkey = { header = \"id\" }");
    world.consumer("body", "tenant = { json_pointer = \"/shop\" }\nkey = { json_pointer = \"/order/id\" }");
    world.consumer("hash", "tenant = { fixed = \"solo\" }\nkey = \"body_hash\"");
    world.apply_topology().await;
    let exchange = world.queue("topic");
    world.broker.declare_exchange(&exchange, ExchangeKind::Topic).await.unwrap();
    world.broker.bind(&world.queue("routing"), &exchange, "#").await.unwrap();
    let worker = world.start("worker");
    let plain = BasicProperties::default;
    world
        .publish("property", plain().with_user_id("guest".into()).with_correlation_id("c".into()), "{}")
        .await;
    let mut headers = FieldTable::default();
    headers.insert("id".into(), AMQPValue::LongLongInt(42));
    world.broker.publish(&exchange, "eu.acme.paid", plain().with_headers(headers), b"{}").await.unwrap();
    world.publish("body", plain(), r#"{"shop": "s1", "order": {"id": 7}}"#).await;
    world.publish("hash", plain(), "abc").await;
    world.wait_for("select count(*) from app.effects", 4).await;
    world.stop(worker).await;
    let seen = "select string_agg(concat_ws('/', consumer, tenant, left(key, 8)), ' ' order by consumer) from app.effects";
    assert_eq!(
        world.text(seen).await.as_deref(),
        Some("body/s1/7 hash/solo/ba7816bf property/guest/c routing/acme/42")
    );
}

#[tokio::test]
async fn a_retried_message_keeps_its_identity_its_routing_key_and_its_user() {
    let mut world = World::new().await;
    world.consumer("routing", "tenant = { routing_key = 2 }\nkey = { property = \"user_id\" }");
    world.apply_topology().await;
    let exchange = world.queue("topic");
    world.broker.declare_exchange(&exchange, ExchangeKind::Topic).await.unwrap();
    world.broker.bind(&world.queue("routing"), &exchange, "#").await.unwrap();
    let worker = world.start("worker");
    let properties = BasicProperties::default().with_user_id("guest".into());
    world.broker.publish(&exchange, "eu.acme.paid", properties, br#"{"do": "fail_once"}"#).await.unwrap();
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
    let seen = "select concat_ws('/', tenant, key, attempt, routing_key, user_id) from app.effects";
    assert_eq!(world.text(seen).await.as_deref(), Some("acme/guest/2/eu.acme.paid/guest"));
}

#[tokio::test]
async fn a_forged_signature_gives_no_identity_at_all() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    let properties = message("acme", "k");
    let mut headers = properties.headers().clone().unwrap();
    let forged =
        format!("1.00000000.{}.{}", "0".repeat(64), r#"{"tenant":"victim","key":"other","user_id":null}"#);
    headers.insert("x-oncely-identity".into(), AMQPValue::LongString(forged.into()));
    world.publish("payments", properties.with_headers(headers), "{}").await;
    let told = "select count(*) from oncely.dead_letters where reason = 'signature_invalid' and tenant = '' and key = ''
        and detail like '%signed with the key 00000000%'";
    world.wait_for(told, 1).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 0, "nor by its headers");
}

#[tokio::test]
async fn a_key_of_signatures_is_replaced_and_one_that_nobody_knows_is_named() {
    let mut world = World::new().await;
    world.consumer("payments", "retry = { delays = [\"2s\"], max_attempts = 3 }");
    world.apply_topology().await;
    let key = "sixteen bytes, or more";
    for (number, (later, told)) in [
        (vec![("ONCELY_CELL__KNOWN_KEYS", format!("[{key:?}]"))], "select count(*) from app.effects"),
        (vec![], "select count(*) from oncely.dead_letters where reason = 'signature_invalid'"),
    ]
    .into_iter()
    .enumerate()
    {
        let signing = [("ONCELY_CELL__SIGNING_KEY", key.to_owned())];
        let worker = world.start_with("worker", &format!("signs-{number}"), &signing);
        world.publish("payments", message("acme", &format!("k{number}")), r#"{"do": "fail_once"}"#).await;
        let retried = "select count(*) from oncely.audit where outcome = 'retried'";
        world.wait_for(retried, i64::try_from(number).unwrap() + 1).await;
        world.stop(worker).await;
        let worker = world.start_with("worker", &format!("reads-{number}"), &later);
        world.wait_for(told, 1).await;
        world.stop(worker).await;
    }
    assert_eq!(
        world.count("select count(*) from app.effects").await,
        1,
        "the second did not run by its headers"
    );
}

fn reason(letter: &lapin::message::Delivery) -> String {
    match letter.properties.headers().as_ref().unwrap().inner().get("x-oncely-reason") {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        other => panic!("no reason: {other:?}"),
    }
}
