//! JSON that only PostgreSQL refuses.

use crate::failures::{dead_letter, text};
use crate::support::{World, message};

#[tokio::test]
async fn json_that_only_postgresql_refuses_is_null_or_dead_lettered_as_the_handler_wants() {
    let mut world = World::new().await;
    world.consumer("lenient", "");
    world.consumer("strict", "handler = { function = \"app.handle\", json = \"required\" }");
    world.apply_topology().await;
    let worker = world.start("worker");
    let bodies = [r#"{"a": "\u0000"}"#, r#"{"a": "\ud800"}"#, r#"{"a": 1e400000}"#];
    for (number, body) in bodies.iter().enumerate() {
        for consumer in ["lenient", "strict"] {
            world.publish(consumer, message("acme", &format!("k{number}")), body).await;
        }
    }
    world.publish("strict", message("acme", "text"), "not json").await;
    world.publish("strict", message("acme", "good"), r#"{"a": 1}"#).await;
    world
        .wait_for("select count(*) from app.effects where consumer = 'lenient' and payload is null", 3)
        .await;
    world.wait_for("select count(*) from app.effects where consumer = 'strict'", 1).await;
    let dead = format!("{}.dead", world.queue("strict"));
    let letters = world.broker.take_exactly(&dead, 4).await.unwrap();
    world.stop(worker).await;
    for letter in letters {
        let reason = text(letter.properties.headers().as_ref().unwrap(), "x-oncely-reason").unwrap();
        assert_eq!(reason, "invalid_json");
    }
}

/// PostgreSQL refuses all that one call binds: the others of the batch must not run one by one for it.
#[tokio::test]
async fn json_that_only_postgresql_refuses_leaves_its_neighbours_a_transaction_together() {
    let mut world = World::new().await;
    let settings = "lanes = 1\nbatch = 200\nprefetch = 400\nhandler = { function = \"app.handle\", json = \"required\" }";
    world.consumer("payments", settings);
    world.apply_topology().await;
    let queue = world.queue("payments");
    let messages = (0..200).map(|n| {
        let body = if n == 100 { r#"{"a": "\u0000"}"# } else { "{}" };
        (queue.clone(), message("acme", &format!("k{n}")), body.as_bytes().to_vec())
    });
    world.broker.publish_all("", messages.collect()).await.unwrap();
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 199).await;
    assert_eq!(dead_letter(&world, "payments").await.1, "invalid_json");
    world.stop(worker).await;
    // Each part of a batch has a subtransaction, and a number, of its own.
    let transactions = world.count("select count(distinct xmin::text) from app.effects").await;
    assert!(transactions < 60, "{transactions} transactions for 199 messages");
}
