//! What a Redis says of itself, and how fast it answers.

use std::time::{Duration, Instant};

use redis::Value;

use super::client::Mirror;
use super::error::MirrorError;
use super::link::ANSWER_TIME;
use super::sentinel::{Said, ask};

/// A Redis, as far as it matters to a mirror.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RedisFacts {
    /// `Redis 7.0.15` or `Valkey 8.1.1`.
    pub(crate) version: String,
    /// Bytes in use.
    pub(crate) used_memory: u64,
    /// The bound; 0 where there is none.
    pub(crate) max_memory: u64,
    /// What goes when the bound is reached.
    pub(crate) policy: String,
    /// A copy of another one, that takes no writes of its own.
    pub(crate) is_replica: bool,
    /// One node of several: keys live where their slot is.
    pub(crate) is_cluster: bool,
    /// The median of five round trips.
    pub(crate) latency: Duration,
}

/// How often the way to Redis is measured.
const ROUNDS: usize = 5;

impl Mirror {
    /// What each Sentinel says of the master. For a person who asks.
    pub(crate) async fn sentinels(&self) -> Result<Vec<Said>, MirrorError> {
        let settings = &*self.settings().current()?;
        let all = settings.sentinels.iter().map(|sentinel| ask(settings, sentinel));
        Ok(futures::future::join_all(all).await)
    }

    /// Asks. For a person who asks: patient, and without the breaker.
    pub(crate) async fn facts(&self) -> Result<RedisFacts, MirrorError> {
        let mut link = self.connect().await?;
        let mut rounds = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let asked = Instant::now();
            timely(redis::cmd("PING").query_async::<Value>(&mut link.connection)).await?;
            rounds.push(asked.elapsed());
        }
        rounds.sort_unstable();
        let info = timely(redis::cmd("INFO").query_async::<String>(&mut link.connection)).await?;
        Ok(RedisFacts { latency: rounds[ROUNDS / 2], ..read(&info) })
    }
}

async fn timely<T>(asked: impl Future<Output = redis::RedisResult<T>>) -> Result<T, MirrorError> {
    match tokio::time::timeout(ANSWER_TIME, asked).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(MirrorError::Budget(ANSWER_TIME)),
    }
}

pub(super) fn read(info: &str) -> RedisFacts {
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or_default().trim()
    };
    let number = |name: &str| field(name).parse().unwrap_or(0);
    // Valkey says a version of Redis, too, for old clients.
    let version = match field("valkey_version") {
        "" => format!("Redis {}", field("redis_version")),
        version => format!("Valkey {version}"),
    };
    RedisFacts {
        version,
        used_memory: number("used_memory"),
        max_memory: number("maxmemory"),
        policy: field("maxmemory_policy").to_owned(),
        is_replica: field("role") == "slave",
        is_cluster: field("cluster_enabled") == "1",
        latency: Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_not_taken_for_others_that_begin_alike() {
        let facts = read(
            "# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.1.1\r\n# Memory\r\nused_memory_human:1M\r\nused_memory:1000000\r\n\
             maxmemory_human:2M\r\nmaxmemory:2000000\r\nmaxmemory_policy:noeviction\r\n# Replication\r\nrole:slave\r\n# Cluster\r\n\
             cluster_enabled:1\r\n",
        );
        let expected = RedisFacts {
            version: "Valkey 8.1.1".to_owned(),
            used_memory: 1_000_000,
            max_memory: 2_000_000,
            policy: "noeviction".to_owned(),
            is_replica: true,
            is_cluster: true,
            latency: Duration::ZERO,
        };
        assert_eq!(facts, expected);
    }
}
