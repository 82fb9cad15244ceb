//! Reads a Redis server's properties, and measures how fast it answers.

use std::time::{Duration, Instant};

use redis::Value;

use super::client::Mirror;
use super::connection::RESPONSE_TIMEOUT;
use super::error::MirrorError;
use super::sentinel::{SentinelAnswer, query_sentinel};

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
const MEASURED_ROUND_TRIPS: usize = 5;

impl Mirror {
    /// Queries all Sentinels at once for the address of the master, and returns each one's answer. For operator commands.
    pub async fn query_sentinels(&self) -> Result<Vec<SentinelAnswer>, MirrorError> {
        let settings = &*self.settings().reread_urls()?;
        let queries = settings.sentinels.iter().map(|sentinel| query_sentinel(settings, sentinel));
        Ok(futures::future::join_all(queries).await)
    }

    /// Reads the server's properties, and measures its latency. For operator commands: with a long timeout, and without the breaker.
    pub async fn read_facts(&self) -> Result<RedisFacts, MirrorError> {
        let mut link = self.connect().await?;
        let mut rounds = Vec::with_capacity(MEASURED_ROUND_TRIPS);
        for _ in 0..MEASURED_ROUND_TRIPS {
            let start = Instant::now();
            wait_for_answer(redis::cmd("PING").query_async::<Value>(&mut link.connection)).await?;
            rounds.push(start.elapsed());
        }
        rounds.sort_unstable();
        let info = wait_for_answer(redis::cmd("INFO").query_async::<String>(&mut link.connection)).await?;
        Ok(RedisFacts { latency: rounds[MEASURED_ROUND_TRIPS / 2], ..parse_info(&info) })
    }
}

/// Waits for the response to a request for up to [`RESPONSE_TIMEOUT`].
async fn wait_for_answer<T>(request: impl Future<Output = redis::RedisResult<T>>) -> Result<T, MirrorError> {
    match tokio::time::timeout(RESPONSE_TIMEOUT, request).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(MirrorError::Budget(RESPONSE_TIMEOUT)),
    }
}

/// Parses the text of INFO; a missing field is empty or zero.
pub(super) fn parse_info(info: &str) -> RedisFacts {
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
        let facts = parse_info(
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
