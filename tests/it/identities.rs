//! Who a message is: consumers, tenants, keys, payloads; and what bad identities get.

use lapin::BasicProperties;
use lapin::ExchangeKind;
use lapin::types::{AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable};

use testbed::RawProperties;

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
        world.wait_for("select count(*) from oncely.outbox", 0).await;
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
    world.consumer("payments", "");
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
async fn a_forged_seal_gives_no_other_identity() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    let properties = message("acme", "k");
    let mut headers = properties.headers().clone().unwrap();
    let forged = format!("{}.{}", "0".repeat(64), r#"{"tenant":"victim","key":"other","user_id":null}"#);
    headers.insert("x-oncely-seal".into(), AMQPValue::LongString(forged.into()));
    world.publish("payments", properties.with_headers(headers), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
    assert_eq!(world.text("select tenant || '/' || key from app.effects").await.as_deref(), Some("acme/k"));
}

fn reason(letter: &lapin::message::Delivery) -> String {
    match letter.properties.headers().as_ref().unwrap().inner().get("x-oncely-reason") {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        other => panic!("no reason: {other:?}"),
    }
}

/// A message that can't be identified, and the reason that it must get.
struct Bad {
    what: &'static str,
    properties: BasicProperties,
    body: &'static [u8],
    reason: &'static str,
}

/// Identity by header `id` (key) and `x-tenant-id` (tenant).
fn bad_identities() -> Vec<Bad> {
    let with = |tenant: Option<AMQPValue>, key: Option<AMQPValue>| {
        let mut headers = FieldTable::default();
        if let Some(tenant) = tenant {
            headers.insert("x-tenant-id".into(), tenant);
        }
        if let Some(key) = key {
            headers.insert("id".into(), key);
        }
        BasicProperties::default().with_headers(headers)
    };
    let text = |bytes: &[u8]| Some(AMQPValue::LongString(bytes.to_vec().into()));
    let good = || text(b"acme");
    let nested = |levels| {
        (0..levels).fold(FieldTable::default(), |inner, _| {
            let mut outer = FieldTable::default();
            outer.insert("t".into(), AMQPValue::FieldTable(inner));
            outer
        })
    };
    // Close to what one frame can hold.
    let deepest = nested(15_000);
    let deep = nested(300);
    let cases: Vec<(&'static str, BasicProperties, &'static str)> = vec![
        ("no headers at all", BasicProperties::default(), "tenant_missing"),
        ("no tenant", with(None, text(b"k")), "tenant_missing"),
        ("empty tenant", with(text(b""), text(b"k")), "tenant_invalid"),
        ("tenant of 256 bytes", with(text(&[b'a'; 256]), text(b"k")), "tenant_invalid"),
        ("tenant with NUL", with(text(b"a\0b"), text(b"k")), "tenant_invalid"),
        ("tenant not UTF-8", with(text(&[0xc3, 0x28]), text(b"k")), "tenant_invalid"),
        ("boolean tenant", with(Some(AMQPValue::Boolean(true)), text(b"k")), "tenant_invalid"),
        ("no key", with(good(), None), "key_missing"),
        ("empty key", with(good(), text(b"")), "key_invalid"),
        ("key of 256 bytes", with(good(), text(&[b'a'; 256])), "key_invalid"),
        ("key of 65,535 bytes", with(good(), text(&[b'a'; 65_535])), "key_invalid"),
        ("key with NUL", with(good(), text(b"\0")), "key_invalid"),
        ("key not UTF-8", with(good(), text(&[0xff, 0xfe])), "key_invalid"),
        ("boolean key", with(good(), Some(AMQPValue::Boolean(false))), "key_invalid"),
        ("float key", with(good(), Some(AMQPValue::Double(1.5))), "key_invalid"),
        (
            "decimal key",
            with(good(), Some(AMQPValue::DecimalValue(DecimalValue { scale: 1, value: 15 }))),
            "key_invalid",
        ),
        ("timestamp key", with(good(), Some(AMQPValue::Timestamp(1_700_000_000))), "key_invalid"),
        ("null key", with(good(), Some(AMQPValue::Void)), "key_invalid"),
        ("array key", with(good(), Some(AMQPValue::FieldArray(FieldArray::default()))), "key_invalid"),
        ("table key", with(good(), Some(AMQPValue::FieldTable(FieldTable::default()))), "key_invalid"),
        ("table key, 300 deep", with(good(), Some(AMQPValue::FieldTable(deep))), "key_invalid"),
        ("table key, 15,000 deep", with(good(), Some(AMQPValue::FieldTable(deepest))), "key_invalid"),
        (
            "bytes that are no text",
            with(good(), Some(AMQPValue::ByteArray(ByteArray::from(vec![0xfe, 0xff])))),
            "key_invalid",
        ),
    ];
    cases
        .into_iter()
        .map(|(what, properties, reason)| Bad { what, properties, body: b"{}", reason })
        .collect()
}

fn good_identity(key: &str) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("x-tenant-id".into(), AMQPValue::LongString("acme".into()));
    headers.insert("id".into(), AMQPValue::LongString(key.into()));
    BasicProperties::default().with_headers(headers)
}

#[tokio::test]
async fn each_bad_identity_is_dead_lettered_under_its_reason_alone() {
    let mut world = World::new().await;
    world.consumer("payments", "key = { header = \"id\" }");
    world.apply_topology().await;
    let worker = world.start("worker");
    let dead = format!("{}.dead", world.queue("payments"));
    for bad in bad_identities() {
        world.publish_bytes("payments", bad.properties, bad.body).await;
        let letter = world.broker.take_exactly(&dead, 1).await.unwrap().remove(0);
        assert_eq!(reason(&letter), bad.reason, "{}", bad.what);
        assert_eq!(letter.data, bad.body, "{}", bad.what);
        world.wait_for_ready(&world.queue("payments"), 0).await;
    }
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 0);
    let half_known = "select count(*) from oncely.dead_letters where reason like 'key%' and tenant <> 'acme'";
    assert_eq!(world.count(half_known).await, 0, "a known tenant is kept where the key is bad");
    let listed = world.count("select count(*) from oncely.dead_letters").await;
    assert_eq!(listed, i64::try_from(bad_identities().len()).unwrap());
}

#[tokio::test]
async fn each_bad_identity_among_a_hundred_good_ones_costs_none_of_them() {
    let mut world = World::new().await;
    world.consumer(
        "payments",
        "key = { header = \"id\" }\nhandler = { function = \"app.handle_batch\", batch = true }",
    );
    world.apply_topology().await;
    let queue = world.queue("payments");
    let dead = format!("{queue}.dead");
    let worker = world.start("worker");
    let mut effects = 0;
    for (round, bad) in bad_identities().into_iter().enumerate() {
        let mut messages: Vec<_> = (0..99)
            .map(|number| (queue.clone(), good_identity(&format!("{round}-{number}")), b"{}".to_vec()))
            .collect();
        messages.insert(50, (queue.clone(), bad.properties, bad.body.to_vec()));
        world.broker.publish_all("", messages).await.unwrap();
        effects += 99;
        world.wait_for("select count(*) from app.effects", effects).await;
        let letter = world.broker.take_exactly(&dead, 1).await.unwrap().remove(0);
        assert_eq!(reason(&letter), bad.reason, "{}", bad.what);
    }
    world.wait_for_ready(&queue, 0).await;
    world.stop(worker).await;
    assert_eq!(world.broker.ready(&dead).await.unwrap(), 0);
    assert_eq!(world.count("select count(*) from app.effects").await, effects);
}

#[tokio::test]
async fn odd_but_valid_messages_are_processed() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    let mut many = message("acme", "headers").headers().clone().unwrap();
    for number in 0..200 {
        many.insert(format!("h{number}").into(), AMQPValue::LongString("v".into()));
    }
    for properties in [
        message("acme", "1970").with_timestamp(0),
        message("acme", "2100").with_timestamp(4_102_444_800),
        message("acme", "milliseconds").with_timestamp(1_700_000_000_000),
        message("acme", "endless").with_timestamp(u64::MAX),
        message("acme", "priority").with_priority(255),
        message("acme", "headers").with_headers(many),
        message("acme", "type").with_content_type("application/octet-stream".into()),
    ] {
        world.publish("payments", properties, "{}").await;
    }
    world.publish_bytes("payments", message("acme", "empty"), b"").await;
    world.wait_for("select count(*) from app.effects", 8).await;
    world.stop(worker).await;
    assert_eq!(world.broker.ready(&format!("{}.dead", world.queue("payments"))).await.unwrap(), 0);
}

#[tokio::test]
async fn an_oversized_body_is_dead_lettered_before_it_is_looked_into() {
    let mut world = World::new().await;
    world.consumer("payments", "max_body = 100\nkey = { json_pointer = \"/id\" }");
    world.apply_topology().await;
    let worker = world.start("worker");
    let body = format!(r#"{{"id": "{}"}}"#, "x".repeat(200));
    world.publish("payments", message("acme", "k"), &body).await;
    world.publish("payments", message("acme", "k"), r#"{"id": "ok"}"#).await;
    let dead = format!("{}.dead", world.queue("payments"));
    let letter = world.broker.take_exactly(&dead, 1).await.unwrap().remove(0);
    world.wait_for("select count(*) from app.effects where key = 'ok'", 1).await;
    world.stop(worker).await;
    assert_eq!((reason(&letter).as_str(), letter.data.len()), ("body_too_large", body.len()));
}

#[tokio::test]
async fn bytes_that_are_not_utf_8_in_any_property_stop_nothing() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    let (url, queue) = (world.urls.rabbitmq.clone(), world.queue("payments"));
    let tenant: (&[u8], &[u8]) = (b"x-tenant-id", b"acme");
    let properties = RawProperties::default().headers(&[tenant]);
    // A UUID as its 16 bytes, as some producers write it.
    let id = [0x7f, 0x3a, 0xff, 0xfe, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
    testbed::publish_raw(&url, &queue, properties.clone().message_id(&id), b"{}").await.unwrap();
    testbed::publish_raw(&url, &queue, properties.clone().message_id(b"a").correlation_id(&[0xff]), b"{}")
        .await
        .unwrap();
    let named: &[(&[u8], &[u8])] = &[tenant, (&[0xc3, 0x28], b"x")];
    testbed::publish_raw(&url, &queue, RawProperties::default().headers(named).message_id(b"b"), b"{}")
        .await
        .unwrap();
    world.publish("payments", message("acme", "c"), "{}").await;
    world.wait_for("select count(*) from app.effects", 3).await;
    let letter = world.broker.take_exactly(&format!("{queue}.dead"), 1).await.unwrap().remove(0);
    let log = worker.output();
    world.stop(worker).await;
    assert_eq!(reason(&letter), "key_invalid");
    assert!(!log.contains("the subscription is over"), "{log}");
    assert_eq!(world.broker.ready(&queue).await.unwrap(), 0);
}

#[tokio::test]
async fn of_two_headers_of_one_name_the_last_one_counts() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    let twice: &[(&[u8], &[u8])] = &[(b"x-tenant-id", b"first"), (b"x-tenant-id", b"last")];
    let properties = RawProperties::default().headers(twice).message_id(b"k");
    testbed::publish_raw(&world.urls.rabbitmq, &world.queue("payments"), properties, b"{}").await.unwrap();
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
    assert_eq!(world.text("select tenant from app.effects").await.as_deref(), Some("last"));
}
