//! Claims keys in Redis and completes them, one after the other in each of so many tasks: by our store, or by the commands of the articles.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use oncely::identity::{Identity, IdentityPart};
use oncely::lease::{Claim, ClaimOutcome, LeaseId, LeaseStore as _, fingerprint};
use oncely::redis_store::{RedisSettings, RedisStore};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

/// The article's own, as the tests have it.
const SCRIPT: &str = include_str!("../../tests/it/lease_stores/article.lua");
/// Of all ways the same.
const RESPONSE: &str = r#"{"success":true,"transactionId":"txn_123"}"#;
/// What a run's lease is, in seconds.
const LEASE: u64 = 30;
/// How long a completed key is kept, in seconds.
const KEPT: u64 = 86_400;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, env = "REDIS_URL")]
    redis: String,
    #[arg(long)]
    way: Way,
    /// Keys, each claimed and completed
    #[arg(long)]
    keys: u64,
    /// At the same time
    #[arg(long, default_value_t = 50)]
    clients: u64,
}

/// How a key is claimed and completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Way {
    /// `RedisStore`: two functions, all on its one connection
    Function,
    /// WATCH, GET, MULTI, SET, EXEC, then SET; a connection for each client, since others must not come between
    Watch,
    /// EVALSHA of the article's script, then SET; one connection for all
    Script,
    /// SET NX, then SET; one connection for all
    Set,
}

/// A client.
enum Client {
    Function(Box<RedisStore>),
    Watch(MultiplexedConnection),
    Script(MultiplexedConnection, String),
    Set(MultiplexedConnection),
}

/// Prints how many seconds all of it took, connecting excepted.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let redis = redis::Client::open(arguments.redis.as_str())?;
    let shared = redis.get_multiplexed_async_connection().await?;
    let mut load = redis::cmd("SCRIPT");
    let script: String = load.arg("LOAD").arg(SCRIPT).query_async(&mut shared.clone()).await?;
    let store = RedisStore::open(RedisSettings::new(&arguments.redis)).await?;
    let mut clients = Vec::new();
    for _ in 0..arguments.clients {
        clients.push(match arguments.way {
            Way::Function => Client::Function(Box::new(store.clone())),
            Way::Watch => Client::Watch(redis.get_multiplexed_async_connection().await?),
            Way::Script => Client::Script(shared.clone(), script.clone()),
            Way::Set => Client::Set(shared.clone()),
        });
    }
    let next = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for mut client in clients {
        let (next, keys) = (Arc::clone(&next), arguments.keys);
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= keys {
                    return anyhow::Ok(());
                }
                client.take(&format!("550e8400-e29b-41d4-a716-{number:012x}")).await?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    crate::tell(&serde_json::json!({ "seconds": began.elapsed().as_secs_f64() }))
}

fn completed() -> String {
    format!(
        r#"{{"status":"COMPLETED","owner":"consumer-{:016x}","completedAt":1764109999999,"result":{RESPONSE}}}"#,
        fastrand::u64(..)
    )
}

impl Client {
    /// One key: it is this one's, and it is done.
    async fn take(&mut self, key: &str) -> anyhow::Result<()> {
        let name = format!("idempotency:v2:order-service:{key}");
        match self {
            Self::Function(store) => {
                let part = |text: &str| IdentityPart::new(text.as_bytes());
                let identity =
                    Identity { tenant: part("acme")?, consumer: part("order-service")?, key: part(key)? };
                let owner = uuid::Uuid::new_v4().to_string();
                let claim = Claim {
                    identity: &identity,
                    fingerprint: fingerprint(b"{}"),
                    owner: &owner,
                    lease: Duration::from_secs(LEASE),
                    max_run: Duration::from_secs(600),
                    retention: Duration::from_secs(KEPT),
                    max_crashes: 3,
                };
                let ClaimOutcome::Granted(grant) = store.claim(&claim).await? else {
                    anyhow::bail!("not granted")
                };
                let held = LeaseId { identity: identity.clone(), token: grant.token };
                store.complete(&held, Some(&serde_json::from_str(RESPONSE)?)).await?;
                return Ok(());
            }
            Self::Watch(own) => {
                redis::cmd("WATCH").arg(&name).query_async::<()>(own).await?;
                let found: Option<String> = redis::cmd("GET").arg(&name).query_async(own).await?;
                anyhow::ensure!(found.is_none(), "it is there");
                let mut transaction = redis::pipe();
                transaction
                    .atomic()
                    .cmd("SET")
                    .arg(&name)
                    .arg(r#"{"status":"PENDING"}"#)
                    .arg("EX")
                    .arg(LEASE)
                    .ignore();
                let done: Option<()> = transaction.query_async(own).await?;
                done.context("somebody else came between")?;
            }
            Self::Script(shared, script) => {
                let mut call = redis::cmd("EVALSHA");
                let owner = uuid::Uuid::new_v4().to_string();
                call.arg(&*script).arg(1).arg(&name).arg(owner).arg(300_000).arg(3_600);
                let said: String = call.query_async(shared).await?;
                anyhow::ensure!(said == "ACQUIRED", "{said}");
            }
            Self::Set(shared) => {
                let mut set = redis::cmd("SET");
                set.arg(&name).arg("PROCESSING").arg("NX").arg("EX").arg(LEASE);
                let done: Option<String> = set.query_async(shared).await?;
                done.context("it is there")?;
            }
        }
        let (Self::Watch(connection) | Self::Script(connection, _) | Self::Set(connection)) = self else {
            return Ok(());
        };
        redis::cmd("SET")
            .arg(&name)
            .arg(completed())
            .arg("EX")
            .arg(KEPT)
            .query_async::<()>(connection)
            .await?;
        Ok(())
    }
}
