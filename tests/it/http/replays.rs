//! Who may have an answer again, and what is left of one that is large.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::http::{Response, StatusCode};
use oncely::http::{Consumer, FingerprintPolicy, IdempotencyLayer, IdempotencyLayerBuilder, OnLarge};
use oncely::lease::PostgresStore;

use super::{Ask, EFFECTS, KEYS, Server, pool};
use crate::support::World;

#[tokio::test]
async fn a_replay_may_be_refused_and_a_first_answer_is_not_asked_about() {
    let mut world = World::new().await;
    let asked = Arc::new(AtomicU32::new(0));
    let guarded = |settings: IdempotencyLayerBuilder| {
        let asked = Arc::clone(&asked);
        settings.on_replay(move |parts| {
            asked.fetch_add(1, Ordering::SeqCst);
            match parts.headers.contains_key("x-may") {
                true => Ok(()),
                false => Err(StatusCode::FORBIDDEN),
            }
        })
    };
    let store = PostgresStore::new(pool(world.database.url(), 4).await);
    let servers = [
        Server::start(pool(world.database.url(), 4).await, guarded).await,
        Server::leased(&world, store, guarded).await,
    ];
    for (number, server) in servers.iter().enumerate() {
        let ask = Ask::pay(&format!("k{number}"), "{}");
        let first = server.client.ask(&ask).await;
        assert_eq!((first.status, asked.swap(0, Ordering::SeqCst)), (201, 0));
        let refused = server.client.ask(&ask).await;
        assert_eq!((refused.status, refused.problem().as_str()), (403, "replay-refused"));
        assert_eq!((refused.is_replayed(), refused.header("location")), (false, None), "nothing is told");
        let may = server.client.ask(&ask.clone().header("X-May", "yes")).await;
        assert_eq!((may.status, may.is_replayed(), may.body), (201, true, first.body));
        assert_eq!((asked.swap(0, Ordering::SeqCst), server.calls.count()), (2, 1));
    }
    assert_eq!(world.count(EFFECTS).await, 2);
}

#[tokio::test]
async fn a_large_answer_may_be_committed_without_its_body() {
    let mut world = World::new().await;
    let omitting = |settings: IdempotencyLayerBuilder| settings.on_large(OnLarge::Omit);
    let server = Server::start(pool(world.database.url(), 4).await, omitting).await;
    let ask = Ask::pay("large", r#"{"do":"large"}"#);
    let first = server.client.ask(&ask).await;
    let sent = first.body.iter().filter(|byte| **byte == b'x').count();
    assert_eq!((first.status, sent), (200, 300_000));
    assert_eq!(first.header("oncely-body-omitted"), None);
    let again = server.client.ask(&ask).await;
    assert_eq!((again.status, again.is_replayed(), again.body.len()), (200, true, 0));
    assert_eq!(again.header("oncely-body-omitted").as_deref(), Some("true"));
    assert_eq!(again.header("content-type"), first.header("content-type"));
    // One that is empty is not one that is left out.
    let empty = Ask::pay("empty", r#"{"do":"empty"}"#);
    server.client.ask(&empty).await;
    assert_eq!(server.client.ask(&empty).await.header("oncely-body-omitted"), None);
    assert_eq!((server.calls.count(), world.count(EFFECTS).await, world.count(KEYS).await), (2, 2, 2));
}

#[tokio::test]
async fn what_took_effect_as_a_message_is_answered_as_the_service_says() {
    let mut world = World::new().await;
    let pool = pool(world.database.url(), 4).await;
    let mapped = |_: IdempotencyLayerBuilder| {
        IdempotencyLayer::transactional(pool.clone())
            .consumer(Consumer::shared("payments"))
            .tenant(|_| Some("acme".to_owned()))
            .fingerprint(FingerprintPolicy::Body)
            .one_principal()
            .from_message(|result| {
                let said = result.response.as_ref().and_then(|json| json["paid"].as_i64());
                let text = format!("{said:?} {}", result.is_refused);
                Response::builder().status(202).body(text.into()).unwrap()
            })
    };
    let server = Server::start(pool.clone(), mapped).await;
    let insert = "insert into oncely.idempotency_keys
            (tenant, consumer, key, status, attempts, created_at, completed_at, reason, response)
        values ('acme', 'payments', 'paid', 'COMPLETED', 1, now(), now(), null, '{\"paid\": 7}'),
            ('acme', 'payments', 'none', 'COMPLETED', 1, now(), now(), null, null),
            ('acme', 'payments', 'no', 'COMPLETED', 1, now(), now(), 'refused', '{\"refused\": \"sold out\"}')";
    sqlx::query(insert).execute(&mut world.sql).await.unwrap();
    for (key, body) in [("paid", "Some(7) false"), ("none", "None false"), ("no", "None true")] {
        let reply = server.client.ask(&Ask::pay(key, "{}")).await;
        assert_eq!((reply.status, reply.is_replayed()), (202, true), "{key}");
        assert_eq!(reply.body, body.as_bytes(), "{key}");
    }
    assert_eq!(server.calls.count(), 0);
}
