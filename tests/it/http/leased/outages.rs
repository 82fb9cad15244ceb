//! The store away, and answers of it that are lost.

use std::time::Duration;

use oncely::lease::PostgresStore;
use sqlx::postgres::PgPoolOptions;
use testbed::eventually;
use testbed::proxy::{Mode, OneShot, Proxy};

use super::{Ask, EFFECTS, Server, in_postgresql};
use crate::support::World;
use crate::support::gate::{Gate, WAITING};

/// The store is behind the proxy, on one connection; the provider is not.
async fn through_a_proxy(world: &World) -> (Proxy, Server) {
    let (proxy, [(_, url)]) = world.proxied_postgres().await;
    let options = PgPoolOptions::new().max_connections(1).acquire_timeout(Duration::from_secs(5));
    // What comes through is an answer to what the store was asked.
    let store = PostgresStore::new(options.test_before_acquire(false).connect_lazy(&url).unwrap());
    (proxy, Server::leased(world, store, |settings| settings).await)
}

#[tokio::test]
async fn without_its_store_nothing_runs_and_the_client_may_come_again() {
    let mut world = World::new().await;
    let (proxy, server) = through_a_proxy(&world).await;
    proxy.set(Mode::Refuse);
    let ask = Ask::pay("away", "{}");
    let reply = server.client.ask(&ask).await;
    assert_eq!((reply.status, reply.problem().as_str()), (503, "unavailable"));
    assert_eq!((reply.header("retry-after").as_deref(), server.calls.count()), (Some("1"), 0));
    proxy.set(Mode::Pass);
    assert_eq!(server.client.ask(&ask).await.status, 201);
    assert_eq!(world.count(EFFECTS).await, 1);
}

/// A request whose step is done and recorded, and whose handler waits at the gate.
async fn paused(
    world: &mut World,
    server: &Server,
    ask: &Ask,
) -> tokio::task::JoinHandle<super::super::client::Reply> {
    let (client, ask) = (server.client, ask.clone());
    let asked = tokio::spawn(async move { client.ask(&ask).await });
    world.wait_for(WAITING, 1).await;
    asked
}

#[tokio::test]
async fn a_lost_answer_of_the_store_is_found_out() {
    let mut world = World::new().await;
    let (proxy, server) = through_a_proxy(&world).await;
    // Its statements are prepared from here on: what is cut off is an answer to their execution.
    assert_eq!(server.client.ask(&Ask::pay("warm", "{}")).await.status, 201);
    let gate = Gate::shut(&world).await;
    let ask = Ask::pay("lost", r#"{"do":"pause"}"#);
    let asked = paused(&mut world, &server, &ask).await;
    proxy.arm(Some(OneShot::LoseCommitReply));
    gate.open().await;
    let done = "select count(*) from oncely.idempotency_keys where key = 'lost' and status = 'COMPLETED'";
    world.wait_for(done, 1).await;
    eventually("the answer is lost", || async {
        anyhow::ensure!(proxy.struck() > 0, "nothing was cut");
        Ok(())
    })
    .await
    .unwrap();
    let first = asked.await.unwrap();
    assert_eq!((first.status, first.is_replayed()), (201, false), "{first:?}");
    assert!(first.header("set-cookie").is_some(), "the handler's own answer");
    let again = server.client.ask(&ask).await;
    assert_eq!((again.status, again.is_replayed(), again.body), (201, true, first.body));
    let completed = "select count(*) from oncely.audit where key = 'lost' and outcome = 'completed'";
    assert_eq!((world.count(completed).await, world.count(EFFECTS).await), (1, 2));
}

#[tokio::test]
async fn a_run_whose_lease_a_clock_took_is_not_charged() {
    let mut world = World::new().await;
    let store = in_postgresql(&world).await;
    let server = Server::leased(&world, store, |settings| settings.lease(Duration::from_secs(3))).await;
    let gate = Gate::shut(&world).await;
    let ask = Ask::pay("overdue", r#"{"do":"pause"}"#);
    let asked = paused(&mut world, &server, &ask).await;
    // As after a clock has jumped: the next renewal finds that the run's time is over, and nobody else has the key.
    let jump =
        "update oncely.idempotency_keys set run_ends_at = clock_timestamp(), not_before = clock_timestamp()";
    sqlx::raw_sql(jump).execute(&mut world.sql).await.unwrap();
    assert_eq!(asked.await.unwrap().status, 503);
    world.wait_for("select count(*) from oncely.idempotency_keys where owner is null", 1).await;
    assert_eq!(world.count("select attempts::bigint from oncely.idempotency_keys").await, 0);
    gate.open().await;
    assert_eq!(server.client.ask(&ask).await.status, 201);
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (2, 1), "its step was done");
}

#[tokio::test]
async fn a_client_does_not_wait_for_a_store_that_is_away_and_finds_the_answer_later() {
    let mut world = World::new().await;
    let (proxy, server) = through_a_proxy(&world).await;
    let gate = Gate::shut(&world).await;
    let ask = Ask::pay("long", r#"{"do":"pause"}"#);
    let asked = paused(&mut world, &server, &ask).await;
    proxy.set(Mode::Refuse);
    proxy.cut();
    let began = std::time::Instant::now();
    gate.open().await;
    let reply = asked.await.unwrap();
    assert_eq!((reply.status, reply.problem().as_str()), (503, "unavailable"));
    assert_eq!(reply.header("retry-after").as_deref(), Some("1"));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    proxy.set(Mode::Pass);
    // It is said until the store has it.
    server.layer.drain().await;
    let again = server.client.ask(&ask).await;
    assert_eq!((again.status, again.is_replayed()), (201, true), "{again:?}");
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (1, 1));
}
