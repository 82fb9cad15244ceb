//! The rows of dead letters.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray, FieldTable};
use serde_json::{Value, json};

use super::{WAITING, dead, failed, fragile, kind};
use crate::support::{World, message};

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
