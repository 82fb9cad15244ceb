//! Parses a Redis server's description of itself.

use std::time::Duration;

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
