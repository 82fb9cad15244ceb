//! What the doctor says of the mirror's server.

use std::time::Duration;

use oncely::config::Config;
use oncely_doctor::{Limits, Verdict};
use secrecy::SecretString;
use testbed::Redis;
use testbed::proxy::{Mode, Protocol, Proxy};

use super::{only, says};
use crate::support::World;

async fn with(url: &str) -> (World, Config) {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.with_redis(url, "");
    let config = world.config();
    (world, config)
}

async fn is(config: &Config, check: &str, verdict: Verdict, part: &str) {
    says(config, &only(check, Limits::default()), check, verdict, part).await;
}

#[tokio::test]
async fn a_redis_that_is_full_a_replica_refuses_or_is_far_away_only_makes_the_mirror_worth_less() {
    let redis = Redis::start().await.unwrap();
    let (_world, mut config) = with(&redis.url()).await;
    let checks = ["redis.reach", "redis.memory", "redis.role", "redis.cluster", "redis.latency"];
    for check in checks {
        is(&config, check, Verdict::Ok, "").await;
    }
    let client = ::redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut command = async |words: &[&str]| {
        let mut command = ::redis::cmd(words[0]);
        words[1..].iter().for_each(|word| {
            command.arg(word);
        });
        command.query_async::<()>(&mut connection).await.unwrap();
    };
    command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    command(&["CONFIG", "SET", "maxmemory", "1000"]).await;
    is(&config, "redis.memory", Verdict::Warning, "nothing is evicted").await;
    command(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]).await;
    is(&config, "redis.memory", Verdict::Ok, "").await;
    command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    is(&config, "redis.role", Verdict::Warning, "is a replica").await;
    command(&["REPLICAOF", "NO", "ONE"]).await;
    is(&config, "redis.role", Verdict::Ok, "").await;

    let upstream = redis.url().replace("redis://", "").replace('/', "").parse().unwrap();
    let proxy = Proxy::start(Protocol::Plain, upstream).await.unwrap();
    let direct = config.mirror.clone();
    if let Some(mirror) = &mut config.mirror {
        mirror.url = SecretString::from(format!("redis://127.0.0.1:{}/", proxy.port()));
        mirror.budget = Duration::from_millis(20);
    }
    proxy.set(Mode::Delay(Duration::from_millis(50)));
    is(&config, "redis.latency", Verdict::Warning, "mirror.budget: is 20ms, and Redis takes").await;
    config.mirror = direct;

    if let Some(mirror) = &mut config.mirror {
        mirror.url = SecretString::from(redis.url().replace("redis://", "redis://:S3CR3T@"));
    }
    command(&["CONFIG", "SET", "requirepass", "another"]).await;
    is(&config, "redis.reach", Verdict::Error, "user or password is refused").await;
}

#[tokio::test]
async fn a_node_of_a_cluster_is_told() {
    let redis = Redis::start_with(&["--cluster-enabled", "yes"]).await.unwrap();
    let (_world, config) = with(&redis.url()).await;
    is(&config, "redis.cluster", Verdict::Error, "is a node of a cluster").await;
}

#[tokio::test]
async fn a_server_without_cluster_mode_is_told_where_a_cluster_is_configured() {
    let redis = Redis::start().await.unwrap();
    let mut world = World::new().await;
    world.configure(&format!("[redis]\nurl = {:?}\ncluster = true\nallow_plaintext = true", redis.url()));
    world.consumer("payments", "");
    is(&world.config(), "redis.cluster", Verdict::Error, "is no node of a cluster").await;
}

#[tokio::test]
async fn without_a_redis_there_is_nothing_to_look_at() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    is(&world.config(), "redis.reach", Verdict::Skipped, "there is no [redis] url").await;
}
