//! The first requests of a process.

use std::time::Duration;

use futures::future::join_all;
use testbed::eventually;

use super::{Ask, EFFECTS, Server};
use crate::support::World;

async fn all_are_done(server: &Server, name: &str) {
    let asks: Vec<Ask> = (0..64).map(|number| Ask::pay(&format!("{name}-{number}"), "{}")).collect();
    for reply in join_all(asks.iter().map(|ask| server.client.ask(ask))).await {
        assert_eq!(reply.status, 201, "{}", String::from_utf8_lossy(&reply.body));
    }
}

/// Since when somebody waits for a lock who began to after that, in microseconds.
async fn waiting_since(world: &World, before: i64) -> i64 {
    let waiting = "select (extract(epoch from query_start) * 1000000)::bigint from pg_stat_activity
        where wait_event_type = 'Lock' and datname = current_database() and pid <> pg_backend_pid()";
    eventually("somebody waits for a lock", || async {
        let mut looking = world.database.connect().await?;
        let since: Option<i64> = sqlx::query_scalar(waiting).fetch_optional(&mut looking).await?;
        since.filter(|since| *since > before).ok_or_else(|| anyhow::anyhow!("nobody"))
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn many_at_once_are_all_done_by_a_layer_that_has_just_started() {
    let mut world = World::new().await;
    all_are_done(&Server::of(&world).await, "cold").await;
    assert_eq!(world.count(EFFECTS).await, 64);
}

#[tokio::test]
async fn a_consumer_that_somebody_registers_just_now_is_waited_for() {
    let mut world = World::new().await;
    assert_eq!(Server::of(&world).await.client.ask(&Ask::pay("first", "{}")).await.status, 201);
    let server = Server::of(&world).await;
    let mut other = world.database.connect().await.unwrap();
    sqlx::raw_sql("begin; select from oncely.consumers for update").execute(&mut other).await.unwrap();
    let holding = async {
        // It waits for the lock, gives up, and asks again.
        let first = waiting_since(&world, 0).await;
        waiting_since(&world, first).await;
        sqlx::raw_sql("commit").execute(&mut other).await.unwrap();
    };
    tokio::join!(holding, all_are_done(&server, "warm"));
    assert_eq!(world.count(EFFECTS).await, 65);
}

#[tokio::test]
async fn a_consumer_that_stays_locked_is_no_key_in_flight() {
    let mut world = World::new().await;
    assert_eq!(Server::of(&world).await.client.ask(&Ask::pay("first", "{}")).await.status, 201);
    let short = |settings: oncely::http::IdempotencyLayerBuilder| settings.wait(Duration::from_millis(300));
    let server = Server::start(super::pool(world.database.url(), 2).await, short).await;
    let mut other = world.database.connect().await.unwrap();
    sqlx::raw_sql("begin; select from oncely.consumers for update").execute(&mut other).await.unwrap();
    let ask = Ask::pay("k", "{}");
    let reply = server.client.ask(&ask).await;
    assert_eq!((reply.status, reply.problem().as_str()), (503, "unavailable"));
    sqlx::raw_sql("commit").execute(&mut other).await.unwrap();
    assert_eq!((server.client.ask(&ask).await.status, world.count(EFFECTS).await), (201, 2));
}
