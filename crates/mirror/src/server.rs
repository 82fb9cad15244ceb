//! Reads a Redis server's properties, and measures how fast it answers.

use std::time::{Duration, Instant};

use redis::Value;

use super::client::Mirror;
use super::connection::ANSWER_TIME;
use super::error::MirrorError;
use super::sentinel::{SentinelAnswer, ask};

/// The properties of a Redis that matter to a mirror.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisFacts {
    /// `Redis 7.0.15` or `Valkey 8.1.1`.
    pub version: String,
    /// Memory in use, in bytes.
    pub used_memory: u64,
    /// Memory limit, in bytes; 0 if unlimited.
    pub max_memory: u64,
    /// The eviction policy (`maxmemory-policy`).
    pub policy: String,
    /// Whether it is a replica, which takes no writes of its own.
    pub is_replica: bool,
    /// Whether it is a cluster node, so that keys live on the node of their slot.
    pub is_cluster: bool,
    /// The median of five round trips.
    pub latency: Duration,
}

/// Number of round trips measured.
const ROUNDS: usize = 5;

impl Mirror {
    /// Returns each Sentinel's answer about the master. For operator commands.
    pub async fn sentinels(&self) -> Result<Vec<SentinelAnswer>, MirrorError> {
        let settings = &*self.settings().current()?;
        let all = settings.sentinels.iter().map(|sentinel| ask(settings, sentinel));
        Ok(futures::future::join_all(all).await)
    }

    /// Reads the server's properties. For operator commands: with a long timeout, and without the breaker.
    pub async fn facts(&self) -> Result<RedisFacts, MirrorError> {
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
    // Valkey also reports a Redis version, for old clients.
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
