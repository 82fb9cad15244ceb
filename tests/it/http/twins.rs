//! The same request at the same time.

use std::time::Duration;

use futures::future::join_all;
use testbed::eventually;

use super::{Ask, EFFECTS, KEYS, Server, pool};
use crate::support::World;
use crate::support::gate::{Gate, WAITING};

/// So many copies over two servers, which know nothing of each other.
async fn twins(count: usize) {
    let mut world = World::new().await;
    // However slow the machine is: they come one after the other.
    let patient = |settings: oncely::http::IdempotencyLayerBuilder| settings.wait(Duration::from_secs(30));
    let start = async || Server::start(pool(world.database.url(), 8).await, patient).await;
    let servers = [start().await, start().await];
    let ask = Ask::pay("twin", "{}");
    let asks = (0..count).map(|number| servers[number % 2].client.ask(&ask));
    let replies = join_all(asks).await;
    let body = &replies[0].body;
    for reply in &replies {
        assert_eq!((reply.status, &reply.body), (201, body));
    }
    assert_eq!(replies.iter().filter(|reply| !reply.is_replayed()).count(), 1);
    let calls: u32 = servers.iter().map(|server| server.calls.count()).sum();
    assert_eq!((calls, world.count(EFFECTS).await, world.count(KEYS).await), (1, 1, 1));
}

#[tokio::test]
async fn two_twins_take_one_effect() {
    twins(2).await;
}

#[tokio::test]
async fn sixty_four_twins_take_one_effect() {
    twins(64).await;
}

#[tokio::test]
async fn a_copy_waits_for_the_first_and_is_told_to_come_again_where_that_takes_long() {
    let mut world = World::new().await;
    let here = Server::of(&world).await;
    let short = |settings: oncely::http::IdempotencyLayerBuilder| settings.wait(Duration::from_millis(300));
    let there = Server::start(pool(world.database.url(), 4).await, short).await;
    let gate = Gate::shut(&world).await;
    let ask = Ask::pay("slow", r#"{"do":"wait"}"#);
    let client = here.client;
    let first = tokio::spawn({
        let ask = ask.clone();
        async move { client.ask(&ask).await }
    });
    world.wait_for(WAITING, 1).await;
    // In another process, and in its own.
    for server in [&there, &here] {
        let reply = server.client.ask(&ask).await;
        assert_eq!((reply.status, reply.problem().as_str()), (409, "in-flight"));
        assert_eq!(reply.header("retry-after").as_deref(), Some("1"));
    }
    let waiting = tokio::spawn({
        let ask = ask.clone();
        async move { client.ask(&ask).await }
    });
    gate.open().await;
    let (first, waiting) = (first.await.unwrap(), waiting.await.unwrap());
    assert_eq!((first.status, waiting.status, &waiting.body), (201, 201, &first.body));
    assert!(!first.is_replayed() && waiting.is_replayed());
    assert_eq!((here.calls.count(), there.calls.count(), world.count(EFFECTS).await), (1, 0, 1));
}

/// The first requests of processes that have just started come together.
#[tokio::test]
async fn requests_that_wait_hold_no_connection() {
    let mut world = World::new().await;
    let long = |settings: oncely::http::IdempotencyLayerBuilder| settings.wait(Duration::from_secs(30));
    let pool = pool(world.database.url(), 2).await;
    let server = Server::start(pool.clone(), long).await;
    let other = Server::start(self::pool(world.database.url(), 2).await, long).await;
    let gate = Gate::shut(&world).await;
    let slow = Ask::pay("slow", r#"{"do":"wait"}"#);
    let ask = |client: super::Client| {
        let slow = slow.clone();
        tokio::spawn(async move { client.ask(&slow).await })
    };
    let first = ask(server.client);
    world.wait_for(WAITING, 1).await;
    // Far more than there are connections, in both processes.
    let mut waiting: Vec<_> = (0..40).map(|_| ask(server.client)).collect();
    waiting.extend((0..20).map(|_| ask(other.client)));
    // Whoever wants something else is served meanwhile.
    for (number, server) in [&server, &other, &server, &other].into_iter().enumerate() {
        let reply = server.client.ask(&Ask::pay(&format!("quick-{number}"), "{}")).await;
        assert_eq!(reply.status, 201);
    }
    eventually("one connection at work", || async {
        let idle = pool.num_idle();
        anyhow::ensure!(idle == 1 && pool.size() == 2, "{idle} idle of {}", pool.size());
        Ok(())
    })
    .await
    .unwrap();
    gate.open().await;
    let first = first.await.unwrap();
    for reply in join_all(waiting).await {
        let reply = reply.unwrap();
        assert_eq!((reply.status, reply.is_replayed(), &reply.body), (201, true, &first.body));
    }
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (1 + 2, 1 + 4));
}
