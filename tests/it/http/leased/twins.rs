//! The same request at the same time.

use futures::future::join_all;
use oncely::lease::{AnyStore, MemoryClock, MemoryStore};
use oncely::redis_store::{RedisSettings, RedisStore};
use testbed::Redis;

use super::{Ask, EFFECTS, Server, in_postgresql};
use crate::support::World;

/// So many copies over two servers of one store, which know nothing of each other.
async fn twins(count: usize) {
    let mut world = World::new().await;
    let redis = Redis::start().await.unwrap();
    let in_redis = RedisStore::open(RedisSettings::new(&redis.url())).await.unwrap();
    let stores = [
        ("postgresql", AnyStore::new(in_postgresql(&world).await)),
        ("redis", AnyStore::new(in_redis)),
        ("memory", AnyStore::new(MemoryStore::in_memory(MemoryClock::default()))),
    ];
    for (number, (name, store)) in stores.into_iter().enumerate() {
        let long = |settings: oncely::http::IdempotencyLayerBuilder| {
            settings.wait(std::time::Duration::from_secs(30))
        };
        let servers =
            [Server::leased(&world, store.clone(), long).await, Server::leased(&world, store, long).await];
        let ask = Ask::pay(&format!("twin-{name}"), "{}");
        let replies = join_all((0..count).map(|number| servers[number % 2].client.ask(&ask))).await;
        for reply in &replies {
            assert_eq!((reply.status, &reply.body), (201, &replies[0].body), "{name}");
        }
        assert_eq!(replies.iter().filter(|reply| !reply.is_replayed()).count(), 1, "{name}");
        let calls: u32 = servers.iter().map(|server| server.calls.count()).sum();
        let effects = i64::try_from(number).unwrap() + 1;
        assert_eq!((calls, world.count(EFFECTS).await), (1, effects), "{name}");
    }
}

#[tokio::test]
async fn two_twins_take_one_effect() {
    twins(2).await;
}

#[tokio::test]
async fn sixty_four_twins_take_one_effect() {
    twins(64).await;
}
