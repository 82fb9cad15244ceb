//! What a door tells the database of a queue's consumer, and what it makes of a key that ran under a lease.

use std::time::Duration;

use sqlx::Executor as _;

use super::shop::shared;
use super::{Ask, EFFECTS, Server, pool};
use crate::support::World;

const KNOWN: &str =
    "select concat_ws(' ', retention, redelivery_horizon, fingerprint, on_conflict) from oncely.consumers";

async fn asked(world: &World, retention: Duration) {
    let pool = pool(world.database.url(), 2).await;
    let server = Server::start(pool.clone(), |_| shared(pool, "payments").retention(retention)).await;
    let key = format!("k-{}", retention.as_secs());
    assert_eq!(server.client.ask(&Ask::pay(&key, "{}")).await.status, 201);
}

#[tokio::test]
async fn what_the_workers_of_a_queue_have_said_of_it_stays() {
    let mut world = World::new().await;
    let said =
        "select oncely.register_consumer('payments', '2 days', '1 hour', 'canonical_json', 'duplicate', 'w')";
    world.sql.execute(said).await.unwrap();
    let day = Duration::from_secs(86_400);
    asked(&world, day).await;
    let known = world.text(KNOWN).await;
    assert_eq!(
        known.as_deref(),
        Some("2 days 01:00:00 canonical_json duplicate"),
        "neither shorter nor other"
    );
    asked(&world, 3 * day).await;
    let known = world.text(KNOWN).await;
    assert_eq!(
        known.as_deref(),
        Some("3 days 01:00:00 canonical_json duplicate"),
        "no answer is forgotten early"
    );
    let by = "select changed_by like '% (http)' from oncely.consumers";
    assert_eq!(world.count(&format!("select count(*) from ({by}) as t (is_door) where is_door")).await, 1);
}

#[tokio::test]
async fn a_door_that_is_there_before_its_queue_leaves_the_word_to_the_workers() {
    let mut world = World::new().await;
    asked(&world, Duration::from_secs(86_400)).await;
    assert_eq!(world.text(KNOWN).await.as_deref(), Some("1 day 00:00:01 body dead_letter"));
    let said =
        "select oncely.register_consumer('payments', '2 days', '1 hour', 'canonical_json', 'duplicate', 'w')";
    world.sql.execute(said).await.unwrap();
    assert_eq!(world.text(KNOWN).await.as_deref(), Some("2 days 01:00:00 canonical_json duplicate"));
}

#[tokio::test]
async fn a_layer_of_its_own_says_how_old_a_copy_may_be() {
    let mut world = World::new().await;
    let pool = pool(world.database.url(), 2).await;
    let hour = |settings: oncely::http::IdempotencyLayerBuilder| {
        settings.redelivery_horizon(Duration::from_secs(3_600))
    };
    let server = Server::start(pool, hour).await;
    assert_eq!(server.client.ask(&Ask::pay("k", "{}")).await.status, 201);
    assert_eq!(world.text(KNOWN).await.as_deref(), Some("7 days 01:00:00 http_request dead_letter"));
}

#[tokio::test]
async fn a_key_whose_lease_is_over_waits_for_whoever_takes_it_over() {
    let mut world = World::new().await;
    let pool = pool(world.database.url(), 2).await;
    let server = Server::start(pool.clone(), |_| shared(pool, "payments")).await;
    let leased = "select from oncely.claim_lease('acme', 'payments', 'k', null, 'w1', interval '30 s')";
    world.sql.execute(leased).await.unwrap();
    let ask = Ask::pay("k", "{}");
    let early = server.client.ask(&ask).await;
    assert_eq!((early.status, early.problem().as_str()), (409, "in-flight"));
    let over = "update oncely.idempotency_keys set not_before = now() - interval '1 second', grace_ends_at = now() - interval '1 second'";
    world.sql.execute(over).await.unwrap();
    let late = server.client.ask(&ask).await;
    assert_eq!((late.status, late.problem().as_str()), (409, "in-flight"));
    assert_eq!(late.header("retry-after").as_deref(), Some("1"));
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (0, 0));
}
