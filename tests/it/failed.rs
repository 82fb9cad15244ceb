//! Dead letters: their rows in PostgreSQL, and what an operator does to them.

use lapin::types::{AMQPValue, FieldArray, FieldTable};
use lapin::{BasicProperties, ExchangeKind};
use serde_json::{Value, json};

use crate::support::{World, message};

/// A handler that fails for every kind that is listed in `app.faults`, each in its own words.
const FRAGILE: &str = r"
create table app.faults (kind text);
create function app.fragile(message oncely.message) returns jsonb language plpgsql as $$
begin
    if exists (select from app.faults where kind = message.payload ->> 'kind') then
        raise exception 'kind % is broken at order ''%''', message.payload ->> 'kind', message.key;
    end if;
    return app.handle(message);
end
$$";

const SETTINGS: &str =
    "handler = { function = \"app.fragile\" }\nretry = { delays = [\"100ms\"], max_attempts = 1 }";

/// A world with a consumer `payments` of [`FRAGILE`] and its queues.
async fn fragile(kinds: &[&str], more: &str) -> World {
    let mut world = World::new().await;
    sqlx::raw_sql(FRAGILE).execute(&mut world.sql).await.unwrap();
    for kind in kinds {
        sqlx::query("insert into app.faults values ($1)").bind(kind).execute(&mut world.sql).await.unwrap();
    }
    world.consumer("payments", &format!("{SETTINGS}\n{more}"));
    world.apply_topology().await;
    world
}

async fn mend(world: &mut World) {
    sqlx::query("delete from app.faults").execute(&mut world.sql).await.unwrap();
}

fn kind(kind: &str) -> String {
    format!("{{\"kind\": {kind:?}}}")
}

fn dead(world: &World) -> String {
    format!("{}.dead", world.queue("payments"))
}

/// Runs `oncely failed … --json`, which must exit with `code`.
async fn failed(world: &World, code: i32, arguments: &[&str]) -> Value {
    let mut all = vec!["failed"];
    all.extend(arguments);
    all.push("--json");
    let output = world.oncely(&all).await;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    let object: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if !object.is_null() {
        assert_eq!(object["schema"], "oncely.failed/1");
    }
    object
}

async fn requeue_all(world: &World) -> Value {
    failed(world, 0, &["requeue", "--all", "--yes"]).await
}

const WAITING: &str = "select count(*) from oncely.dead_letters where state = 'waiting'";

#[tokio::test]
async fn each_dead_letter_has_a_row_with_all_of_its_message() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    let mut headers = FieldTable::default();
    headers.insert("x-tenant-id".into(), AMQPValue::LongString("acme".into()));
    headers.insert("small".into(), AMQPValue::ShortShortUInt(7));
    headers.insert("junk".into(), AMQPValue::LongString(vec![0xff, 0].into()));
    headers.insert("list".into(), AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Double(1.5)])));
    let properties = message("acme", "k")
        .with_headers(headers)
        .with_content_type("application/json".into())
        .with_priority(3)
        .with_expiration("600000".into());
    let body = r#"{"do": "reject"}"#;
    world.publish("payments", properties, body).await;
    world.wait_for(WAITING, 1).await;
    world.stop(worker).await;
    let text = "select concat_ws('|', tenant, consumer, key, reason, error_code, attempt, state, generation, times, body_size,
        whole, exchange, convert_from(body, 'UTF8')) from oncely.dead_letters";
    assert_eq!(
        world.text(text).await.unwrap(),
        format!("acme|payments|k|handler_rejected|ONC01|1|waiting|1|1|16|t||{body}")
    );
    let stored: (Value, Value, String, String) =
        sqlx::query_as("select properties, headers, routing_key, failure_group from oncely.dead_letters")
            .fetch_one(&mut world.sql)
            .await
            .unwrap();
    assert_eq!(
        stored.0,
        json!({
            "content_type": "application/json", "message_id": "k", "priority": 3, "expiration": "600000", "delivery_mode": 2
        })
    );
    assert_eq!(
        stored.1,
        json!({ "x-tenant-id": "acme", "small": { "B": 7 }, "junk": { "S": "ff00" }, "list": [{ "d": "1.5" }] })
    );
    assert_eq!(stored.2, world.queue("payments"));
    assert!(stored.3.starts_with("handler_rejected/ONC01/"), "{}", stored.3);
    // The queue's copy names its row.
    let letter = world.broker.take_exactly(&dead(&world), 1).await.unwrap().remove(0);
    let named = letter.properties.headers().as_ref().unwrap().inner().get("x-oncely-dead-letter").cloned();
    let row = world.text("select id || '/' || generation from oncely.dead_letters").await.unwrap();
    assert_eq!(named, Some(AMQPValue::LongString(row.clone().into())));
    // And the command line shows it, the body only when asked.
    let id = row.split('/').next().unwrap();
    let shown = failed(&world, 0, &["show", id]).await;
    assert_eq!((&shown["letter"]["key"], &shown["letter"]["body"]), (&json!("k"), &Value::Null));
    assert_eq!(failed(&world, 0, &["show", id, "--body"]).await["letter"]["body"], body);
    assert_eq!(world.oncely(&["failed", "show", id, "--raw"]).await.stdout, body.as_bytes());
    let plain = world.oncely(&["failed", "show", id]).await;
    let plain = String::from_utf8_lossy(&plain.stdout).into_owned();
    assert!(plain.contains("no such account") && !plain.contains("\"do\""), "{plain}");
    assert_eq!(failed(&world, 0, &["list"]).await["letters"][0]["id"], id);
    failed(&world, 1, &["list", "--tenant", "globex"]).await;
    failed(&world, 1, &["show", "00000000-0000-0000-0000-000000000000"]).await;
}

#[tokio::test]
async fn a_message_that_is_dead_lettered_again_keeps_its_row_and_why_it_failed() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    for round in 1..=3 {
        world.publish("payments", message("acme", "k"), r#"{"do": "reject"}"#).await;
        world.wait_for("select times::bigint from oncely.dead_letters", round).await;
    }
    // Without a key two equal messages are two messages, and two equal ones of a batch that has one are one letter.
    let mut nameless = FieldTable::default();
    nameless.insert("x-tenant-id".into(), AMQPValue::LongString("acme".into()));
    for _ in 0..2 {
        let properties = BasicProperties::default().with_headers(nameless.clone());
        world.publish("payments", properties, "{}").await;
    }
    world.wait_for("select count(*) from oncely.dead_letters where reason = 'key_missing'", 2).await;
    world.stop(worker).await;
    let row = "select concat_ws('|', generation, attempt, error_code, detail) from oncely.dead_letters where key = 'k'";
    assert_eq!(world.text(row).await.unwrap(), "1|1|ONC01|no such account: account 7 (SQLSTATE ONC01)");
    world.wait_for_ready(&dead(&world), 5).await;
}

#[tokio::test]
async fn equal_messages_of_one_batch_that_are_refused_are_one_letter() {
    let mut world = World::new().await;
    world.consumer("payments", "handler = { function = \"app.handle\", json = \"required\" }");
    world.apply_topology().await;
    for _ in 0..3 {
        world.publish("payments", message("acme", "k"), "not json").await;
    }
    let worker = world.start("worker");
    world.wait_for_ready(&dead(&world), 3).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.dead_letters").await, 1);
    assert_eq!(world.count("select times::bigint from oncely.dead_letters").await, 3);
}

#[tokio::test]
async fn headers_that_no_table_holds_do_not_stop_the_worker_and_are_requeued_from_the_queue() {
    let mut world = fragile(&["a"], "").await;
    let worker = world.start("worker");
    let deep = (0..2_000).fold(FieldTable::default(), |inner, _| {
        let mut outer = FieldTable::default();
        outer.insert("t".into(), AMQPValue::FieldTable(inner));
        outer
    });
    let mut properties = message("acme", "k");
    let mut headers = properties.headers().clone().unwrap();
    headers.insert("deep".into(), AMQPValue::FieldTable(deep));
    properties = properties.with_headers(headers);
    world.publish("payments", properties, &kind("a")).await;
    world.wait_for("select count(*) from oncely.dead_letters where not whole", 1).await;
    mend(&mut world).await;
    let done = requeue_all(&world).await;
    assert_eq!((&done["done"], &done["swept"][0]["requeued"]), (&json!(0), &json!(1)));
    world.wait_for("select count(*) from app.effects where headers ? 'deep'", 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_requeued_message_runs_once_as_it_first_came() {
    let mut world = fragile(&["a"], "tenant = \"user_id\"").await;
    let exchange = world.queue("topic");
    world.broker.declare_exchange(&exchange, ExchangeKind::Topic).await.unwrap();
    world.broker.bind(&world.queue("payments"), &exchange, "#").await.unwrap();
    // A fan-out's other queue has its message already.
    let other = world.queue("other");
    world.broker.declare_queue(&other, FieldTable::default()).await.unwrap();
    world.broker.bind(&other, &exchange, "#").await.unwrap();
    let worker = world.start("worker");
    let mut headers = FieldTable::default();
    headers.insert("small".into(), AMQPValue::ShortShortUInt(7));
    headers.insert("list".into(), AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::LongInt(1)])));
    let properties = BasicProperties::default()
        .with_message_id("k".into())
        .with_user_id("guest".into())
        .with_headers(headers);
    world.broker.publish(&exchange, "eu.paid", properties, kind("a").as_bytes()).await.unwrap();
    world.wait_for(WAITING, 1).await;
    world.wait_for_ready(&dead(&world), 1).await;
    mend(&mut world).await;
    let done = requeue_all(&world).await;
    assert_eq!((&done["done"], &done["failed"]), (&json!(1), &json!(0)));
    assert_eq!(done["swept"][0]["dropped"], 1);
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
    let seen = "select concat_ws('|', tenant, key, attempt, routing_key, user_id, headers -> 'small', headers -> 'list')
        from app.effects";
    assert_eq!(world.text(seen).await.unwrap(), "guest|k|1|eu.paid|guest|7|[1]");
    let key = "select status || ' ' || attempts from oncely.idempotency_keys";
    assert_eq!(world.text(key).await.unwrap(), "COMPLETED 1");
    let row = "select state || ' ' || (swept_at is not null) from oncely.dead_letters";
    assert_eq!(world.text(row).await.unwrap(), "requeued true");
    assert_eq!(world.broker.ready(&dead(&world)).await.unwrap(), 0);
    assert_eq!(world.broker.ready(&other).await.unwrap(), 1, "the other queue of the exchange got no copy");
}

#[tokio::test]
async fn a_group_is_requeued_alone_and_what_comes_back_is_counted() {
    let mut world = fragile(&["a", "b", "c"], "").await;
    let worker = world.start("worker");
    for (kinds, count) in [("a", 3), ("b", 2), ("c", 1)] {
        for number in 1..=count {
            world.publish("payments", message("acme", &format!("{kinds}-{number}")), &kind(kinds)).await;
        }
    }
    world.wait_for(WAITING, 6).await;
    world.wait_for_ready(&dead(&world), 6).await;
    let groups = failed(&world, 0, &["groups"]).await["groups"].as_array().unwrap().clone();
    let waiting: Vec<_> = groups.iter().map(|group| group["waiting"].as_i64().unwrap()).collect();
    assert_eq!(waiting, [3, 2, 1], "the orders' numbers are not part of the group");
    let group = groups[0]["failure_group"].as_str().unwrap();
    let plan = failed(&world, 0, &["requeue", "--group", group, "--dry-run"]).await;
    assert_eq!((&plan["count"], plan["samples"].as_array().unwrap().len()), (&json!(3), 3));
    assert_eq!(world.count(WAITING).await, 6, "a dry run changes nothing");
    // One of the three is mended.
    sqlx::query("create or replace function app.handle(message oncely.message) returns jsonb language plpgsql as $$ begin
        if message.key <> 'a-2' then raise exception 'kind a is broken at order ''%''', message.key; end if;
        insert into app.effects (tenant, consumer, key) values (message.tenant, message.consumer, message.key); return null; end $$")
        .execute(&mut world.sql)
        .await
        .unwrap();
    mend(&mut world).await;
    let done = failed(&world, 0, &["requeue", "--group", group, "--yes", "--note", "mended"]).await;
    assert_eq!(done["done"], 3);
    world.wait_for("select count(*) from oncely.dead_letters where generation = 2", 2).await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for_ready(&dead(&world), 5).await;
    world.stop(worker).await;
    let after = failed(&world, 0, &["groups", "--group", group]).await;
    let after = &after["groups"][0];
    assert_eq!(
        (&after["came_back"], &after["requeued"], &after["waiting"]),
        (&json!(2), &json!(1), &json!(2))
    );
    let table = world.oncely(&["failed", "groups"]).await;
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("came back: 2 of 3"), "{table}");
    assert_eq!(world.count("select count(*) from oncely.dead_letters where generation = 1").await, 4);
    let action =
        "select concat_ws('|', tenant, verb, count, reason, filter ->> 'group') from oncely.operator_actions";
    assert_eq!(world.text(action).await.unwrap(), format!("acme|requeue|3|mended|{group}"));
}

#[tokio::test]
async fn a_discarded_letter_leaves_the_queue_and_its_neighbours_stay() {
    let mut world = fragile(&["a"], "").await;
    let worker = world.start("worker");
    for key in ["one", "two", "three"] {
        world.publish("payments", message("acme", key), &kind("a")).await;
    }
    world.wait_for(WAITING, 3).await;
    world.wait_for_ready(&dead(&world), 3).await;
    let done = failed(&world, 0, &["discard", "--key", "two", "--yes"]).await;
    assert_eq!(
        (&done["done"], &done["swept"][0]["dropped"], &done["swept"][0]["kept"]),
        (&json!(1), &json!(1), &json!(2))
    );
    world.stop(worker).await;
    let letters = world.broker.take_exactly(&dead(&world), 2).await.unwrap();
    let mut keys: Vec<_> =
        letters.iter().map(|l| l.properties.message_id().as_ref().unwrap().to_string()).collect();
    keys.sort();
    assert_eq!(keys, ["one", "three"]);
    for letter in &letters {
        let headers = letter.properties.headers().as_ref().unwrap().inner();
        let routing_key = AMQPValue::LongString(world.queue("payments").into());
        assert_eq!(headers.get("x-oncely-routing-key"), Some(&routing_key));
        assert!(headers.contains_key("x-oncely-reason"));
    }
    assert_eq!(world.broker.ready(&dead(&world)).await.unwrap(), 0);
    let key = "select status from oncely.idempotency_keys where key = 'two'";
    assert_eq!(world.text(key).await.unwrap(), "FAILED", "a discarded message does not run");
}

#[tokio::test]
async fn a_key_conflict_is_not_requeued_and_another_payloads_failed_key_is_not_touched() {
    let mut world = fragile(&["a"], "").await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), &kind("a")).await;
    world.wait_for(WAITING, 1).await;
    world.publish("payments", message("acme", "k"), &kind("b")).await;
    world.wait_for("select count(*) from oncely.dead_letters where reason = 'key_conflict'", 1).await;
    let plan = failed(&world, 1, &["requeue", "--reason", "key_conflict", "--yes"]).await;
    let refused = plan["refused"].as_object().unwrap();
    assert!(
        refused.iter().any(|(why, count)| why.starts_with("key_conflict: ") && count == 1),
        "{refused:?}"
    );
    // The key is another payload's by now: its letter must not run under it, and the key stays given up.
    sqlx::query("update oncely.idempotency_keys set fingerprint = sha256('other')")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let plan = failed(&world, 1, &["requeue", "--all", "--yes"]).await;
    assert_eq!(plan["refused"].as_object().unwrap().len(), 2, "{plan}");
    world.stop(worker).await;
    assert_eq!(world.text("select status from oncely.idempotency_keys").await.unwrap(), "FAILED");
    assert_eq!(world.count(WAITING).await, 2);
    assert_eq!(world.count("select count(*) from app.effects").await, 0);
}

#[tokio::test]
async fn a_body_over_the_cap_is_requeued_from_the_queue() {
    let mut world = fragile(&["a"], "").await;
    world.configure("[dead_letters]\nmax_body = 100");
    let worker = world.start("worker");
    let large = format!("{{\"kind\": \"a\", \"filling\": {:?}}}", "x".repeat(200));
    world.publish("payments", message("acme", "large"), &large).await;
    world.publish("payments", message("acme", "small"), &kind("a")).await;
    world.wait_for(WAITING, 2).await;
    world.wait_for_ready(&dead(&world), 2).await;
    assert_eq!(world.count("select count(body) from oncely.dead_letters").await, 1);
    mend(&mut world).await;
    let done = requeue_all(&world).await;
    assert_eq!((&done["done"], &done["swept"][0]["requeued"]), (&json!(1), &json!(1)), "{done}");
    world.wait_for("select count(*) from app.effects", 2).await;
    world.stop(worker).await;
    let size = world.count("select octet_length(body)::bigint from app.effects where key = 'large'").await;
    assert_eq!(size, i64::try_from(large.len()).unwrap());
    assert_eq!(world.count("select count(*) from oncely.dead_letters where state = 'requeued'").await, 2);
    assert_eq!(world.broker.ready(&dead(&world)).await.unwrap(), 0);
}

#[tokio::test]
async fn a_requeue_that_is_broken_off_before_it_publishes_is_finished_by_the_next_one() {
    let mut world = fragile(&["a"], "").await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), &kind("a")).await;
    world.wait_for(WAITING, 1).await;
    world.wait_for_ready(&dead(&world), 1).await;
    mend(&mut world).await;
    world.broker.delete_exchange(&format!("{}.return", world.queue("payments"))).await.unwrap();
    failed(&world, 1, &["requeue", "--all", "--yes"]).await;
    assert_eq!(world.text("select state from oncely.dead_letters").await.unwrap(), "requeueing");
    assert_eq!(world.broker.ready(&dead(&world)).await.unwrap(), 1, "the letter is still in its queue");
    assert_eq!(failed(&world, 0, &["list"]).await["letters"][0]["state"], "requeueing");
    world.apply_topology().await;
    let done = requeue_all(&world).await;
    assert_eq!(done["done"], 1);
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
    assert_eq!(world.text("select state from oncely.dead_letters").await.unwrap(), "requeued");
    assert_eq!(world.broker.ready(&dead(&world)).await.unwrap(), 0);
}

#[tokio::test]
async fn a_requeue_that_is_broken_off_after_it_published_runs_its_message_once() {
    let mut world = fragile(&["a"], "").await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), &kind("a")).await;
    world.wait_for(WAITING, 1).await;
    mend(&mut world).await;
    requeue_all(&world).await;
    world.wait_for("select count(*) from app.effects", 1).await;
    // As if it had died before it noted that.
    sqlx::query("update oncely.dead_letters set state = 'requeueing'").execute(&mut world.sql).await.unwrap();
    let plan = failed(&world, 0, &["requeue", "--all", "--dry-run"]).await;
    let notes = plan["notes"].to_string();
    assert!(notes.contains("took effect meanwhile") && notes.contains("broken off"), "{notes}");
    assert_eq!(requeue_all(&world).await["done"], 1);
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0, "acknowledged");
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
    assert_eq!(world.text("select state from oncely.dead_letters").await.unwrap(), "requeued");
}

#[tokio::test]
async fn a_broker_that_is_away_leaves_everything_as_it_was() {
    let mut world = fragile(&["a"], "").await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), &kind("a")).await;
    world.wait_for(WAITING, 1).await;
    world.stop(worker).await;
    world.urls.rabbitmq = "amqp://guest:guest@127.0.0.1:1/%2f".to_owned();
    failed(&world, 3, &["requeue", "--all", "--yes"]).await;
    assert_eq!(world.count(WAITING).await, 1);
    assert_eq!(world.text("select status from oncely.idempotency_keys").await.unwrap(), "FAILED");
    assert_eq!(world.count("select count(*) from oncely.operator_actions").await, 0);
}

#[tokio::test]
async fn nothing_is_changed_without_consent_a_filter_or_beyond_the_limit() {
    let mut world = fragile(&["a"], "").await;
    let worker = world.start("worker");
    for key in ["one", "two"] {
        world.publish("payments", message("acme", key), &kind("a")).await;
    }
    world.wait_for(WAITING, 2).await;
    world.stop(worker).await;
    for verb in ["requeue", "discard"] {
        for (code, arguments) in [
            (4, &["--all"][..]),
            (4, &["--all", "--yes", "--max", "1"]),
            (2, &["--yes"]),
            (0, &["--all", "--dry-run"]),
            (1, &["--key", "nobody", "--yes"]),
        ] {
            let mut all = vec!["failed", verb];
            all.extend(arguments);
            let output = world.oncely(&all).await;
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(code), "{all:?}: {text}");
        }
    }
    assert_eq!(world.count(WAITING).await, 2);
    assert_eq!(world.count("select count(*) from oncely.operator_actions").await, 0);
}

/// A quorum queue that loses a message at its fourth return.
async fn short_lived(world: &World) {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(3));
    world.broker.declare_queue(&dead(world), arguments).await.unwrap();
}

#[tokio::test]
async fn letters_that_wait_survive_any_number_of_sweeps_of_a_queue_with_a_delivery_limit() {
    let mut world = World::new().await;
    world.consumer("payments", "queue_type = \"quorum\"");
    short_lived(&world).await;
    // It says that this queue is there with other arguments, and declares the rest.
    assert_eq!(world.oncely(&["topology", "apply"]).await.status.code(), Some(1));
    let worker = world.start("worker");
    for number in 0..11 {
        world.publish("payments", message("acme", &format!("k{number}")), r#"{"do": "reject"}"#).await;
        // Somebody else's, without a row.
        let stranger = message("acme", &format!("s{number}"));
        world.broker.publish("", &dead(&world), stranger, b"stranger").await.unwrap();
    }
    world.wait_for_ready(&dead(&world), 22).await;
    world.stop(worker).await;
    for _ in 0..25 {
        let pass = failed(&world, 0, &["sweep", "--queue", &world.queue("payments")]).await;
        assert_eq!((&pass["swept"][0]["kept"], &pass["swept"][0]["dropped"]), (&json!(22), &json!(0)));
    }
    let letters = world.broker.take_exactly(&dead(&world), 22).await.unwrap();
    let mut keys: Vec<_> =
        letters.iter().map(|l| l.properties.message_id().as_ref().unwrap().to_string()).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 22);
}

#[tokio::test]
async fn a_sweep_sends_no_copy_to_the_other_queues_that_a_publisher_named() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let other = world.queue("ledger");
    world.broker.declare_queue(&other, FieldTable::default()).await.unwrap();
    let worker = world.start("worker");
    let mut headers = message("acme", "k1").headers().clone().unwrap();
    let named = vec![AMQPValue::LongString(other.clone().into())];
    headers.insert("CC".into(), AMQPValue::FieldArray(named.into()));
    world.publish("payments", message("acme", "k1").with_headers(headers), r#"{"do": "reject"}"#).await;
    world.wait_for_ready(&dead(&world), 1).await;
    world.wait_for_ready(&other, 1).await;
    world.stop(worker).await;
    for _ in 0..2 {
        let pass = failed(&world, 0, &["sweep", "--queue", &world.queue("payments")]).await;
        assert_eq!(pass["swept"][0]["kept"], json!(1));
    }
    // Confirms come when a message is in all its queues.
    assert_eq!(world.broker.ready(&other).await.unwrap(), 1, "the publisher's own copy");
}

#[tokio::test]
async fn two_sweeps_at_once_lose_and_double_nothing() {
    let mut world = World::new().await;
    world.consumer("payments", "queue_type = \"quorum\"");
    short_lived(&world).await;
    world.oncely(&["topology", "apply"]).await;
    let worker = world.start("worker");
    for number in 0..100 {
        world.publish("payments", message("acme", &format!("k{number}")), r#"{"do": "reject"}"#).await;
    }
    world.wait_for_ready(&dead(&world), 100).await;
    world.stop(worker).await;
    sqlx::query("update oncely.dead_letters set state = 'discarded' where key like '%5'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    for _ in 0..5 {
        let queue = world.queue("payments");
        let arguments = ["sweep", "--queue", &queue];
        futures::join!(failed(&world, 0, &arguments), failed(&world, 0, &arguments));
    }
    world.wait_for_ready(&dead(&world), 90).await;
    let letters = world.broker.take_exactly(&dead(&world), 90).await.unwrap();
    let mut keys: Vec<_> =
        letters.iter().map(|l| l.properties.message_id().as_ref().unwrap().to_string()).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 90);
}

#[tokio::test]
async fn a_forged_name_of_a_letter_costs_no_message() {
    let mut world = fragile(&["a"], "").await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), &kind("a")).await;
    world.wait_for(WAITING, 1).await;
    let letter = world.broker.take_exactly(&dead(&world), 1).await.unwrap().remove(0);
    failed(&world, 0, &["discard", "--all", "--yes"]).await;
    // All of the discarded letter's headers, on a message of another body.
    let forged = BasicProperties::default().with_headers(letter.properties.headers().clone().unwrap());
    world.broker.publish("", &dead(&world), forged, b"mine").await.unwrap();
    let pass = failed(&world, 0, &["sweep"]).await;
    assert_eq!((&pass["swept"][0]["kept"], &pass["swept"][0]["dropped"]), (&json!(1), &json!(0)));
    world.stop(worker).await;
}

#[tokio::test]
async fn a_requeued_copy_is_no_dead_letter_where_the_broker_gives_it_up_itself() {
    given_up_by_the_broker("").await;
    // And where the copy was made from the queue's.
    given_up_by_the_broker("[dead_letters]\nmax_body = 1").await;
}

async fn given_up_by_the_broker(settings: &str) {
    let mut world = fragile(&["a"], "").await;
    world.configure(settings);
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), &kind("a")).await;
    world.wait_for(WAITING, 1).await;
    world.wait_for_ready(&dead(&world), 1).await;
    world.stop(worker).await;
    requeue_all(&world).await;
    // The broker moves it to the dead-letter queue, as at a delivery limit: headers and all.
    let queue = world.queue("payments");
    world.wait_for_ready(&queue, 1).await;
    let got =
        world.broker.channel().basic_get(queue.as_str().into(), Default::default()).await.unwrap().unwrap();
    got.delivery.reject(lapin::options::BasicRejectOptions { requeue: false }).await.unwrap();
    world.wait_for_ready(&dead(&world), 1).await;
    let pass = failed(&world, 0, &["sweep"]).await;
    assert_eq!((&pass["swept"][0]["kept"], &pass["swept"][0]["dropped"]), (&json!(1), &json!(0)));
    assert_eq!(world.broker.ready(&dead(&world)).await.unwrap(), 1, "the only copy is still there");
}

#[tokio::test]
async fn a_message_without_a_key_keeps_its_user_when_it_is_requeued_under_another_configuration() {
    let mut world = World::new().await;
    sqlx::raw_sql(FRAGILE).execute(&mut world.sql).await.unwrap();
    let wrong = format!("{SETTINGS}\ntenant = \"user_id\"\nkey = {{ header = \"id\" }}");
    world.consumer("payments", &wrong);
    world.apply_topology().await;
    let worker = world.start("worker");
    let properties = BasicProperties::default().with_message_id("k".into()).with_user_id("guest".into());
    world.publish("payments", properties, "{}").await;
    world.wait_for("select count(*) from oncely.dead_letters where reason = 'key_missing'", 1).await;
    world.stop(worker).await;
    let text = std::fs::read_to_string(world.file()).unwrap();
    std::fs::write(world.file(), text.replace("{ header = \"id\" }", "{ property = \"message_id\" }"))
        .unwrap();
    requeue_all(&world).await;
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects where tenant = 'guest' and key = 'k'", 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn only_letters_that_are_decided_swept_and_old_are_collected() {
    let mut world = fragile(&["a"], "").await;
    let worker = world.start("worker");
    for number in 0..4 {
        world.publish("payments", message("acme", &format!("k{number}")), &kind("a")).await;
    }
    world.wait_for(WAITING, 4).await;
    world.stop(worker).await;
    sqlx::raw_sql(
        "update oncely.dead_letters set updated_at = now() - interval '91 days', dead_lettered_at = now() - interval '91 days';
         update oncely.dead_letters set state = 'discarded', swept_at = now() where key in ('k0', 'k1');
         update oncely.dead_letters set state = 'discarded' where key = 'k2';
         update oncely.dead_letters set updated_at = now() where key = 'k1'",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    assert!(world.oncely(&["gc", "run"]).await.status.success());
    let left = "select string_agg(key, ' ' order by key) from oncely.dead_letters";
    assert_eq!(world.text(left).await.unwrap(), "k1 k2 k3");
}
