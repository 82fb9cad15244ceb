//! Two doors, one effect: a request that comes again as a message, and a message that comes again as a request.

use super::shop::shared;
use super::{Ask, EFFECTS, Server, pool};
use crate::support::{World, message};

#[tokio::test]
async fn a_request_that_returns_as_a_message_is_one_effect() {
    let mut world = World::new().await;
    world.configure("[audit]\nduplicates = true");
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    let pool = pool(world.database.url(), 4).await;
    let server = Server::start(pool.clone(), |_| shared(pool, "payments")).await;

    // As a request first.
    let body = r#"{"amount":7}"#;
    let first = server.client.ask(&Ask::pay("request", body)).await;
    assert_eq!(first.status, 201);
    world.publish("payments", message("acme", "request"), body).await;
    let duplicate = "select count(*) from oncely.audit where key = 'request' and outcome = 'duplicate'";
    world.wait_for(duplicate, 1).await;
    assert_eq!(world.count(EFFECTS).await, 1);
    let response = "select response ->> 'receipt' from oncely.idempotency_keys where key = 'request'";
    let receipt: serde_json::Value = serde_json::from_slice(&first.body).unwrap();
    assert_eq!(
        world.text(response).await.as_deref(),
        receipt["receipt"].as_str(),
        "a message's response, too"
    );

    // As a message first.
    world.publish("payments", message("acme", "message"), body).await;
    world.wait_for("select count(*) from app.effects where key = 'message'", 1).await;
    let reply = server.client.ask(&Ask::pay("message", body)).await;
    assert_eq!((reply.status, reply.is_replayed()), (200, true));
    assert_eq!(reply.body, br#"{"done": "message"}"#);
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (1, 2));

    // Another payload is another intent, at either door.
    assert_eq!(server.client.ask(&Ask::pay("message", "{}")).await.problem(), "key-reused");
    world.publish("payments", message("acme", "request"), "{}").await;
    let conflict = "select count(*) from oncely.audit where key = 'request' and reason = 'key_conflict'";
    world.wait_for(conflict, 1).await;
    assert_eq!(world.count(EFFECTS).await, 2);
    world.stop(worker).await;
}

#[tokio::test]
async fn a_message_that_failed_may_be_done_as_a_request() {
    let mut world = World::new().await;
    world.consumer("payments", "retry = { delays = [\"1h\"], max_attempts = 3 }");
    world.apply_topology().await;
    let worker = world.start("worker");
    let pool = pool(world.database.url(), 4).await;
    let server = Server::start(pool.clone(), |_| shared(pool, "payments")).await;
    let body = r#"{"do":"fail_once"}"#;
    world.publish("payments", message("acme", "k"), body).await;
    let charged =
        "select count(*) from oncely.idempotency_keys where status = 'IN_PROGRESS' and not_before > now()";
    world.wait_for(charged, 1).await;
    let early = server.client.ask(&Ask::pay("k", body)).await;
    assert_eq!((early.status, early.problem().as_str()), (409, "in-flight"), "its delay is not over");
    let due = "update oncely.idempotency_keys set not_before = now()";
    sqlx::query(due).execute(&mut world.sql).await.unwrap();
    assert_eq!(server.client.ask(&Ask::pay("k", body)).await.status, 201);
    let attempts = "select attempts::bigint from oncely.idempotency_keys where status = 'COMPLETED'";
    assert_eq!((world.count(attempts).await, world.count(EFFECTS).await), (2, 1));
    world.stop(worker).await;
}
