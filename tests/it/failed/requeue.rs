//! Dead letters that run again.

use lapin::types::{AMQPValue, FieldArray, FieldTable};
use lapin::{BasicProperties, ExchangeKind};
use serde_json::json;

use super::{FRAGILE, SETTINGS, WAITING, dead, failed, fragile, kind, mend, requeue_all};
use crate::support::{World, message};

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
    world.wait_for_ready(&dead(&world), 1).await;
    mend(&mut world).await;
    let done = requeue_all(&world).await;
    assert_eq!((&done["done"], &done["swept"][0]["requeued"]), (&json!(0), &json!(1)));
    world.wait_for("select count(*) from app.effects where headers ? 'deep'", 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_letter_that_no_program_can_read_stops_no_other() {
    let mut world = fragile(&["a"], "").await;
    let worker = world.start("worker");
    for key in ["k1", "k2", "k3"] {
        world.publish("payments", message("acme", key), &kind("a")).await;
    }
    world.wait_for(WAITING, 3).await;
    world.wait_for_ready(&dead(&world), 3).await;
    // Numbers that PostgreSQL's JSON holds, and Rust's does not.
    sqlx::raw_sql("update oncely.dead_letters set properties = '{\"n\": 1e400}', headers = '{\"n\": 1e400}' where key = 'k2'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    mend(&mut world).await;
    let done = failed(&world, 1, &["requeue", "--all", "--yes"]).await;
    assert_eq!((&done["done"], &done["failed"]), (&json!(2), &json!(1)), "{done}");
    world.wait_for("select count(*) from app.effects", 2).await;
    let id = world.text("select id::text from oncely.dead_letters where key = 'k2'").await.unwrap();
    let shown = world.oncely(&["failed", "show", &id]).await;
    assert_eq!(shown.status.code(), Some(0), "{shown:?}");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("(unreadable) = {\"n\": 1"), "{shown:?}");
    failed(&world, 0, &["show", &id]).await;
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
        if message.key <> 'a-2' then perform oncely.reject(format('kind a is broken at order ''%s''', message.key)); end if;
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
async fn a_message_without_a_name_that_comes_back_is_the_same_letter() {
    let mut world = fragile(&[], "key = { json_pointer = \"/id\" }").await;
    let worker = world.start("worker");
    // Equal ones are as many messages: nothing names them.
    for _ in 0..3 {
        world.publish("payments", message("acme", "m"), "{no json").await;
    }
    world.wait_for(WAITING, 3).await;
    world.wait_for_ready(&dead(&world), 3).await;
    assert_eq!(requeue_all(&world).await["done"], 3);
    world
        .wait_for("select count(*) from oncely.dead_letters where state = 'waiting' and generation = 2", 3)
        .await;
    assert_eq!(world.count("select count(*) from oncely.dead_letters").await, 3);
    world.wait_for_ready(&dead(&world), 3).await;
    let table = world.oncely(&["failed", "groups"]).await;
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("came back: 3 of 3"), "{table}");
    world.stop(worker).await;
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
    sqlx::query(
        "update oncely.idempotency_keys set fingerprint = oncely.stored_fingerprint(sha256('other'))",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let plan = failed(&world, 1, &["requeue", "--all", "--yes"]).await;
    assert_eq!(plan["refused"].as_object().unwrap().len(), 2, "{plan}");
    world.stop(worker).await;
    assert_eq!(world.text("select status::text from oncely.idempotency_keys").await.unwrap(), "FAILED");
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
    world.configure("[audit]\nduplicates = true");
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
    let done = requeue_all(&world).await;
    assert_eq!((&done["done"], &done["closed"]), (&json!(0), &json!(1)), "nothing is published: it has run");
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'duplicate'").await, 0);
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0);
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
    assert_eq!(world.text("select status::text from oncely.idempotency_keys").await.unwrap(), "FAILED");
    assert_eq!(world.count("select count(*) from oncely.operator_actions").await, 0);
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
