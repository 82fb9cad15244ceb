//! The promise: a message takes effect once, duplicates run nothing.

use std::time::Duration;

use crate::support::{World, message};

#[tokio::test]
async fn duplicates_of_a_message_run_nothing_and_are_acknowledged() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.configure("[audit]\nduplicates = true");
    world.apply_topology().await;
    let worker = world.start("worker");
    for _ in 0..3 {
        world.publish("payments", message("acme", "order-1"), r#"{"amount": 5}"#).await;
    }
    world.wait_for("select count(*) from oncely.audit where outcome = 'duplicate'", 2).await;
    // Long after: PostgreSQL knows it.
    world.publish("payments", message("acme", "order-1"), r#"{"amount": 5}"#).await;
    world.wait_for("select count(*) from oncely.audit where outcome = 'duplicate'", 3).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'completed'").await, 1);
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0, "all are acknowledged");
    assert_eq!(world.broker.ready(&format!("{}.dead", world.queue("payments"))).await.unwrap(), 0);
    let response = world.text("select response ->> 'done' from oncely.idempotency_keys").await;
    assert_eq!(response.as_deref(), Some("order-1"));
}

/// As a cluster may say it: its part of the table has another name, or the error comes wrapped in another one.
#[tokio::test]
async fn a_duplicate_is_known_in_whatever_words_the_server_says_so() {
    for words in [
        "alter table oncely.idempotency_keys rename constraint idempotency_keys_pkey to anything",
        "alter function oncely.claim_fresh rename to claim_fresh_plainly;
         create function oncely.claim_fresh(messages oncely.message[], fingerprints bytea[], consumer text, at timestamptz)
         returns oncely.message[] language plpgsql as $$
         begin
             return oncely.claim_fresh_plainly(messages, fingerprints, consumer, at);
         exception
             when unique_violation then
                 perform nextval('app.failures');
                 raise exception using errcode = 'XX000', message = 'a node failed';
         end $$",
    ] {
        let mut world = World::new().await;
        world.consumer("payments", "lanes = 1");
        world.configure("[audit]\nduplicates = true");
        world.apply_topology().await;
        sqlx::raw_sql("create sequence app.failures").execute(&mut world.sql).await.unwrap();
        sqlx::raw_sql(words).execute(&mut world.sql).await.unwrap();
        let worker = world.start("worker");
        for duplicates in 0..5 {
            world.publish("payments", message("acme", "order-1"), "{}").await;
            let told = "select count(*) from oncely.audit where outcome = 'duplicate'";
            world.wait_for(told, duplicates).await;
            world.wait_for("select count(*) from oncely.audit where outcome = 'completed'", 1).await;
        }
        world.stop(worker).await;
        assert_eq!(world.count("select count(*) from oncely.audit").await, 5, "nothing was retried");
        assert_eq!(world.count("select count(*) from app.effects").await, 1);
        let failures = "select case when is_called then last_value else 0 end from app.failures";
        assert!(world.count(failures).await <= 1, "no duplicate meets the same failure again");
    }
}

#[tokio::test]
async fn two_workers_share_a_backlog_and_each_message_runs_once() {
    let mut world = World::new().await;
    world.configure("[audit]\nduplicates = true");
    world.consumer("payments", "batch = 16\nhandler = { function = \"app.handle_batch\", batch = true }");
    world.apply_topology().await;
    let queue = world.queue("payments");
    // Each key three times, spread, so that both workers meet copies of what the other has.
    let messages = (0..900)
        .map(|number| (queue.clone(), message("acme", &format!("k{}", number % 300)), b"{}".to_vec()))
        .collect();
    world.broker.publish_all("", messages).await.unwrap();
    let workers = [world.start_as("worker", "one"), world.start_as("worker", "two")];
    world.wait_for("select count(*) from oncely.audit where outcome = 'duplicate'", 600).await;
    for worker in workers {
        world.stop(worker).await;
    }
    assert_eq!(world.broker.ready(&queue).await.unwrap(), 0);
    assert_eq!(world.count("select count(*) from app.effects").await, 300);
    assert_eq!(
        world.count("select count(*) from oncely.idempotency_keys where status = 'COMPLETED'").await,
        300
    );
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'completed'").await, 300);
}

#[tokio::test]
async fn many_lanes_never_acknowledge_a_tag_that_another_lane_has_covered() {
    let mut world = World::new().await;
    world.consumer("payments", "batch = 3\nlanes = 6");
    world.apply_topology().await;
    let worker = world.start("worker");
    let queue = world.queue("payments");
    for round in 0..8 {
        let messages = (0..1_000)
            .map(|n| (queue.clone(), message("acme", &format!("{round}-{n}")), b"{}".to_vec()))
            .collect();
        world.broker.publish_all("", messages).await.unwrap();
    }
    world.wait_within(Duration::from_secs(120), "select count(*) from app.effects", 8_000).await;
    world.wait_for_ready(&queue, 0).await;
    let log = worker.output();
    world.stop(worker).await;
    // The broker closes a channel on which a tag is acknowledged twice.
    assert!(!log.contains("subscription lost"), "{log}");
    assert_eq!(world.broker.ready(&queue).await.unwrap(), 0);
}

#[tokio::test]
async fn the_handler_gets_the_message_as_it_was_published() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    let body = r#"{"b": 1,  "a": "ü"}"#;
    world.publish("payments", message("acme", "Key 1 "), body).await;
    world.publish_bytes("payments", message("acme", "binary"), &[0, 159, 146, 150]).await;
    world.wait_for("select count(*) from app.effects", 2).await;
    world.stop(worker).await;
    let stored = world.text("select convert_from(body, 'UTF8') from app.effects where key = 'Key 1 '").await;
    assert_eq!(stored.as_deref(), Some(body), "byte for byte, and the key with its blank");
    assert_eq!(
        world.text("select payload ->> 'a' from app.effects where key = 'Key 1 '").await.as_deref(),
        Some("ü")
    );
    assert_eq!(
        world.count("select count(*) from app.effects where key = 'binary' and payload is null and body = '\\x009f9296'").await,
        1,
        "a body that is not JSON arrives as bytes"
    );
    assert_eq!(
        world.text("select headers ->> 'x-tenant-id' from app.effects limit 1").await.as_deref(),
        Some("acme")
    );
}

#[tokio::test]
async fn one_consumer_may_read_several_queues_and_remembers_across_them() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let (one, two) = (world.queue("payments"), world.queue("more"));
    let text = std::fs::read_to_string(world.file()).unwrap();
    let text = text.replace(&format!("queue = {one:?}"), &format!("queues = [{one:?}, {two:?}]"));
    std::fs::write(world.file(), text).unwrap();
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), "{}").await;
    world.publish("more", message("acme", "k"), "{}").await;
    world.publish("more", message("acme", "last"), "{}").await;
    world.wait_for("select count(*) from app.effects where key = 'last'", 1).await;
    world.wait_for_ready(&two, 0).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects where key = 'k'").await, 1);
}
