//! Several hosts of each server: three nodes of RabbitMQ, a primary with a standby that has each commit, a Redis with Sentinels or a
//! Redis Cluster. For trials in which one after the other is lost.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use crate::proxy::{Protocol, Proxy};
use crate::rabbitmq::COOKIE;
use crate::{Hosts, Postgres, RabbitMq, Redis, RedisCluster, SentinelRedis, Servers, Urls, wait};

/// See the module.
#[derive(Debug)]
pub struct Cluster {
    /// RabbitMQ's nodes; one that is gone for good stays in its place.
    pub nodes: Vec<RabbitMq>,
    /// The primary, and then who was its standby.
    pub primary: Postgres,
    /// The standby, while there is one.
    pub standby: Option<Postgres>,
    /// The Redis.
    redis: RedisHosts,
    /// Where the harness goes, which knows one address of each.
    doors: Doors,
}

/// Several hosts of Redis.
#[derive(Debug)]
enum RedisHosts {
    /// A master and its replica, and those who make the one the other.
    Sentinels(SentinelRedis),
    /// Three masters, each with a replica.
    Cluster(RedisCluster),
}

/// The slot of all entries of the mirror of the cell `main` is that of this.
const MIRROR_KEY: &str = "{main}";

impl RedisHosts {
    /// The server that has the mirror's entries.
    async fn master(&self) -> anyhow::Result<&Redis> {
        Ok(match self {
            Self::Sentinels(redis) => &redis.nodes[redis.master().await?],
            Self::Cluster(redis) => &redis.nodes[redis.master_of(redis.slot_of(MIRROR_KEY).await?).await?],
        })
    }
}

#[derive(Debug)]
struct Doors {
    postgres: Proxy,
    rabbitmq: Proxy,
    redis: Proxy,
}

/// A minority of nodes serves nobody, as RabbitMQ's guide on clusters advises.
const NODES: &str = "cluster_partition_handling = pause_minority\n";
/// A retry queue sends what has expired once more when the work queue has not confirmed it within this time, 180 seconds by default: what was on
/// its way when the leader was lost.
const RETRIES: &str = "-rabbit dead_letter_worker_publisher_confirm_timeout 5000";
const COUNT: usize = 3;
/// Longest time until a node is one of them again.
const REPAIR: Duration = Duration::from_secs(90);

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

impl Cluster {
    /// Starts all of them; Redis as a cluster, or with Sentinels.
    pub async fn start(has_redis_cluster: bool) -> anyhow::Result<Self> {
        let (nodes, (primary, standby), redis) = tokio::try_join!(
            RabbitMq::start_cluster(COUNT, NODES, RETRIES),
            async {
                let primary = Postgres::start(&[]).await?;
                let standby = primary.standby().await?;
                primary.make_commits_wait().await?;
                anyhow::Ok((primary, standby))
            },
            async {
                Ok(match has_redis_cluster {
                    true => RedisHosts::Cluster(RedisCluster::start(&[]).await?),
                    false => RedisHosts::Sentinels(SentinelRedis::start(&[]).await?),
                })
            },
        )?;
        let doors = Doors {
            postgres: Proxy::start(Protocol::Plain, local(primary.port)).await?,
            rabbitmq: Proxy::start(Protocol::Plain, local(nodes[0].port())).await?,
            redis: Proxy::start(Protocol::Plain, local(redis.master().await?.port())).await?,
        };
        Ok(Self { nodes, primary, standby: Some(standby), redis, doors })
    }

    /// Where processes find all of them.
    #[must_use]
    pub fn hosts(&self) -> Hosts {
        let (sentinels, redis_cluster) = match &self.redis {
            RedisHosts::Sentinels(redis) => (redis.sentinel_urls(), Vec::new()),
            RedisHosts::Cluster(redis) => (Vec::new(), redis.urls()),
        };
        Hosts {
            postgres: std::iter::once(&self.primary).chain(&self.standby).map(|server| server.port).collect(),
            rabbitmq: self.nodes.iter().map(RabbitMq::port).collect(),
            sentinels,
            redis_cluster,
        }
    }

    /// The same for the harness: one address of each, which always leads to one that is there.
    #[must_use]
    pub fn servers(&self) -> Servers {
        let Doors { postgres, rabbitmq, redis } = &self.doors;
        Servers::of_another(Urls {
            postgres: format!("postgres://postgres@127.0.0.1:{}/postgres", postgres.port()),
            rabbitmq: format!("amqp://guest:guest@127.0.0.1:{}/%2f", rabbitmq.port()),
            redis: format!("redis://127.0.0.1:{}/", redis.port()),
        })
    }

    /// Returns the index of a running node other than `number`.
    fn other_node(&self, number: usize) -> anyhow::Result<usize> {
        let runs = |other: &usize| *other != number && self.nodes[*other].pid().is_some();
        (0..self.nodes.len()).find(runs).context("no other node runs")
    }

    /// The harness leaves this node.
    fn leave(&self, number: usize) -> anyhow::Result<()> {
        self.doors.rabbitmq.retarget(local(self.nodes[self.other_node(number)?].port()));
        self.doors.rabbitmq.cut();
        Ok(())
    }

    /// The number of the node that leads a quorum queue.
    pub async fn leader(&self, queue: &str) -> anyhow::Result<usize> {
        let asked = self.other_node(self.nodes.len())?;
        let text = self.nodes[asked].ctl(&["list_queues", "--silent", "name", "leader"]).await?;
        let row = text.lines().find_map(|line| line.split_once('\t').filter(|(name, _)| *name == queue));
        let (_, leader) = row.with_context(|| format!("{queue} is not in {text}"))?;
        let is_leader = |node: &RabbitMq| leader.trim_matches(['\'', '"', ' ']) == node.name();
        self.nodes.iter().position(is_leader).with_context(|| format!("{leader} is no node of ours"))
    }

    /// Messages that the retry queues of a work queue hold and give to nobody: they have expired, and RabbitMQ has not handed them on.
    pub async fn held_back(&self, queue: &str) -> anyhow::Result<u64> {
        let asked = self.other_node(self.nodes.len())?;
        let text =
            self.nodes[asked].ctl(&["list_queues", "--silent", "name", "messages", "messages_ready"]).await?;
        let retry = format!("{queue}.retry.");
        let held = text.lines().filter(|line| line.starts_with(&retry)).map(|line| {
            let mut counts = line.split('\t').skip(1).map(|count| count.trim().parse::<u64>().unwrap_or(0));
            let (all, ready) = (counts.next().unwrap_or(0), counts.next().unwrap_or(0));
            all.saturating_sub(ready)
        });
        Ok(held.sum())
    }

    /// Waits until a node serves clients again, and all nodes that run have what is in a quorum queue.
    pub async fn wait_until_whole(&self, number: usize, queue: &str) -> anyhow::Result<()> {
        self.nodes[number].wait_until_answering().await?;
        let runs: Vec<&str> =
            self.nodes.iter().filter(|node| node.pid().is_some()).map(RabbitMq::name).collect();
        wait::eventually_within(REPAIR, "the queue is on all nodes", || async {
            let text = self.nodes[number].ctl(&["list_queues", "--silent", "name", "online"]).await?;
            let row = text.lines().find(|line| line.split_once('\t').is_some_and(|(name, _)| name == queue));
            let row = row.with_context(|| format!("{queue} is not in {text}"))?;
            anyhow::ensure!(runs.iter().all(|name| row.contains(name)), "{row}");
            anyhow::Ok(())
        })
        .await
    }

    /// Kills a node with -9.
    pub fn kill_node(&mut self, number: usize) -> anyhow::Result<()> {
        self.nodes[number].kill()?;
        self.leave(number)
    }

    /// Cuts a node off from the others: they do not know each other any more, and clients come to all of them.
    pub async fn cut_off(&self, number: usize) -> anyhow::Result<()> {
        self.leave(number)?;
        let forget =
            "[begin erlang:set_cookie(N, nobody), erlang:disconnect_node(N) end || N <- nodes()], ok.";
        self.nodes[number].ctl(&["eval", forget]).await.map(drop)
    }

    /// They know each other again.
    pub async fn join(&self, number: usize) -> anyhow::Result<()> {
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != number);
        let names: Vec<String> = others.map(|(_, node)| format!("'{}'", node.name())).collect();
        let know = format!("[erlang:set_cookie(N, '{COOKIE}') || N <- [{}]], ok.", names.join(","));
        self.nodes[number].ctl(&["eval", &know]).await.map(drop)
    }

    /// Stops or continues a node's process: its connections are there, and nothing comes through them.
    pub fn signal_node(&self, number: usize, signal: Signal) -> anyhow::Result<()> {
        self.leave(number)?;
        let pid = self.nodes[number].pid().context("the node does not run")?;
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no process id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// A node is gone for good: the others forget it.
    pub async fn lose_node(&mut self, number: usize) -> anyhow::Result<()> {
        self.kill_node(number)?;
        let name = self.nodes[number].name().to_owned();
        self.nodes[self.other_node(number)?].ctl(&["forget_cluster_node", &name]).await.map(drop)
    }

    /// The primary dies, and the standby takes its place.
    pub async fn promote(&mut self) -> anyhow::Result<()> {
        let standby = self.standby.take().context("there is no standby any more")?;
        self.primary.kill()?;
        standby.promote().await?;
        self.doors.postgres.retarget(local(standby.port));
        self.doors.postgres.cut();
        self.primary = standby;
        Ok(())
    }

    /// The Redis master dies, and its replica takes its place.
    pub async fn lose_redis(&mut self) -> anyhow::Result<()> {
        match &mut self.redis {
            RedisHosts::Sentinels(redis) => redis.fail_over().await?,
            RedisHosts::Cluster(redis) => {
                let slot = redis.slot_of(MIRROR_KEY).await?;
                redis.fail_over(slot).await?;
            }
        }
        self.doors.redis.retarget(local(self.redis.master().await?.port()));
        self.doors.redis.cut();
        Ok(())
    }
}
