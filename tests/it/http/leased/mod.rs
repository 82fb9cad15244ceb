//! The door for effects outside: the same requests over raw sockets, handlers under leases, a provider with books of its own.

mod broken;
mod crashes;
mod endings;
mod messages;
mod outages;
mod table;
mod twins;

use oncely::http::IdempotencyLayerBuilder;
use oncely::lease::{MemoryClock, MemoryStore, PostgresStore};
use oncely::redis_store::{RedisSettings, RedisStore};
use testbed::Redis;

use super::{Ask, Server, pool};
use crate::support::World;

/// Calls to the provider that took effect.
const EFFECTS: &str = "select count(*) from app.effects where consumer = 'provider'";
/// By how many keys of steps.
const STEP_KEYS: &str = "select count(distinct routing_key) from app.effects where consumer = 'provider'";

/// The store in the world's database.
async fn in_postgresql(world: &World) -> PostgresStore {
    PostgresStore::new(pool(world.database.url(), 8).await)
}

/// With the settings of most tests.
async fn server(world: &World) -> Server {
    changed(world, |settings| settings).await
}

async fn changed(
    world: &World,
    change: impl FnOnce(IdempotencyLayerBuilder) -> IdempotencyLayerBuilder,
) -> Server {
    Server::leased(world, in_postgresql(world).await, change).await
}

/// One server for each store, with a name that no key of another one has; and the Redis of the last one.
async fn of_each_store(world: &World) -> ([(&'static str, Server); 3], Redis) {
    let redis = Redis::start().await.unwrap();
    let in_redis = RedisStore::open(RedisSettings::new(&redis.url())).await.unwrap();
    let memory = MemoryStore::in_memory(MemoryClock::default());
    let servers = [
        ("postgresql", server(world).await),
        ("redis", Server::leased(world, in_redis, |settings| settings).await),
        ("memory", Server::leased(world, memory, |settings| settings).await),
    ];
    (servers, redis)
}
