//! A Redis Cluster: three masters, each with a replica that takes over when it is gone.

use std::time::Duration;

use anyhow::Context as _;
use redis::aio::MultiplexedConnection;

use crate::{Redis, wait};

/// How many masters there are, and as many replicas.
const MASTERS: usize = 3;
/// Slots of a cluster.
const SLOTS: usize = 16_384;
/// Longest time in which the nodes get to know each other, and for a failover.
const LIMIT: Duration = Duration::from_secs(40);
/// Silence after which a node counts as gone, in milliseconds.
const NODE_TIMEOUT: &str = "5000";

/// Six nodes: the masters come first, and each one's replica is three places behind it.
#[derive(Debug)]
pub struct RedisCluster {
    /// The nodes. Which of them are masters changes with a failover.
    pub nodes: Vec<Redis>,
}

async fn connect(node: &Redis) -> anyhow::Result<MultiplexedConnection> {
    Ok(redis::Client::open(node.url())?.get_multiplexed_async_connection().await?)
}

async fn ask<T: redis::FromRedisValue>(node: &Redis, words: &[&str]) -> anyhow::Result<T> {
    let mut command = redis::cmd(words.first().context("no command")?);
    command.arg(words.get(1..).unwrap_or_default());
    Ok(command.query_async(&mut connect(node).await?).await?)
}

impl RedisCluster {
    /// Starts the nodes, with further options, and waits until each serves all slots.
    pub async fn start(options: &[&str]) -> anyhow::Result<Self> {
        let own = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            NODE_TIMEOUT,
            "--repl-diskless-sync-delay",
            "0",
        ];
        let options = [options, &own].concat();
        let mut nodes = Vec::new();
        for _ in 0..2 * MASTERS {
            nodes.push(Redis::start_with(&options).await?);
        }
        let all = Self { nodes };
        for (number, node) in all.nodes.iter().take(MASTERS).enumerate() {
            let (first, last) = (SLOTS * number / MASTERS, SLOTS * (number + 1) / MASTERS - 1);
            // Else the nodes settle their equal epochs later, and one may take back a slot that it has just given away.
            ask::<()>(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]).await?;
            ask::<()>(node, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]).await?;
        }
        let first = all.nodes.first().context("no node")?;
        for node in all.nodes.iter().skip(1) {
            let (port, bus) = (node.port().to_string(), node.bus_port().to_string());
            ask::<()>(first, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await?;
        }
        for number in 0..MASTERS {
            let id: String = ask(&all.nodes[number], &["CLUSTER", "MYID"]).await?;
            let replica = &all.nodes[number + MASTERS];
            wait::eventually_within(LIMIT, "the replica knows its master", || async {
                ask::<()>(replica, &["CLUSTER", "REPLICATE", &id]).await
            })
            .await?;
        }
        for node in &all.nodes {
            wait::eventually_within(LIMIT, "the cluster serves all slots", || async {
                let info: String = ask(node, &["CLUSTER", "INFO"]).await?;
                let is_whole = info.contains("cluster_state:ok")
                    && info.contains(&format!("cluster_slots_ok:{SLOTS}"))
                    && info.contains(&format!("cluster_known_nodes:{}", 2 * MASTERS));
                anyhow::ensure!(is_whole, "{info}");
                Ok(())
            })
            .await?;
        }
        for replica in all.nodes.iter().skip(MASTERS) {
            wait::eventually_within(LIMIT, "the replica has a copy", || async {
                let info: String = ask(replica, &["INFO", "replication"]).await?;
                anyhow::ensure!(info.contains("master_link_status:up"), "{info}");
                Ok(())
            })
            .await?;
        }
        Ok(all)
    }

    /// URLs of all nodes.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Redis::url).collect()
    }

    /// The number of the node that is the master of a slot, as a node that runs sees it.
    pub async fn master_of(&self, slot: u16) -> anyhow::Result<usize> {
        let node = self.nodes.iter().find(|node| node.pid().is_some()).context("no node runs")?;
        let ranges: Vec<(u16, u16, (String, u16, String))> = {
            let answer: redis::Value = ask(node, &["CLUSTER", "SLOTS"]).await?;
            let redis::Value::Array(ranges) = answer else { anyhow::bail!("{answer:?}") };
            let parse = |range: &redis::Value| match range {
                // Behind the master come its replicas.
                redis::Value::Array(parts) => redis::from_redis_value(redis::Value::Array(
                    parts.iter().take(3).map(first_three).collect(),
                ))
                .ok(),
                _ => None,
            };
            ranges.iter().map(parse).collect::<Option<_>>().context("no ranges")?
        };
        let found = ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        let port = found.context("a slot without a master")?.2.1;
        self.nodes.iter().position(|node| node.port() == port).context("a master that is not ours")
    }

    /// The slot of a key.
    pub async fn slot_of(&self, key: &str) -> anyhow::Result<u16> {
        let node = self.nodes.iter().find(|node| node.pid().is_some()).context("no node runs")?;
        ask(node, &["CLUSTER", "KEYSLOT", key]).await
    }

    /// Kills the master of a slot with -9 once its replica has all of its writes, and waits until another node is its master.
    pub async fn fail_over(&mut self, slot: u16) -> anyhow::Result<()> {
        let old = self.master_of(slot).await?;
        let master = &self.nodes[old];
        let of_master = format!("master_port:{}\r", master.port());
        wait::eventually_within(LIMIT, "a replica has all writes", || async {
            let written =
                offset(&ask::<String>(master, &["INFO", "replication"]).await?, "master_repl_offset:");
            for node in self.nodes.iter().filter(|node| node.pid().is_some()) {
                let info: String = ask(node, &["INFO", "replication"]).await?;
                if info.contains(&of_master) && offset(&info, "slave_repl_offset:") == written {
                    return Ok(());
                }
            }
            anyhow::bail!("none is at {written:?}")
        })
        .await?;
        self.nodes[old].kill()?;
        let this = &*self;
        wait::eventually_within(LIMIT, "a replica takes over", || async {
            anyhow::ensure!(this.master_of(slot).await? != old, "still the old one");
            Ok(())
        })
        .await
    }

    /// Moves a slot with its keys to another master while it serves, as `redis-cli --cluster reshard` does.
    pub async fn move_slot(&self, slot: u16, to: usize) -> anyhow::Result<()> {
        let from = self.master_of(slot).await?;
        anyhow::ensure!(from != to, "it is there");
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let (source_id, target_id): (String, String) =
            (ask(source, &["CLUSTER", "MYID"]).await?, ask(target, &["CLUSTER", "MYID"]).await?);
        let (slot, port) = (slot.to_string(), target.port().to_string());
        ask::<()>(target, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]).await?;
        ask::<()>(source, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]).await?;
        loop {
            let keys: Vec<String> = ask(source, &["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).await?;
            if keys.is_empty() {
                break;
            }
            for key in keys {
                ask::<redis::Value>(source, &["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]).await?;
            }
        }
        ask::<()>(target, &["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).await?;
        ask::<()>(source, &["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).await
    }
}

/// A number of INFO.
fn offset(info: &str, field: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix(field)?.trim_end().parse().ok())
}

/// The first three parts of a node's description: later releases add some.
fn first_three(part: &redis::Value) -> redis::Value {
    match part {
        redis::Value::Array(parts) => redis::Value::Array(parts.iter().take(3).cloned().collect()),
        other => other.clone(),
    }
}
