//! A Redis master, its replica, and the Sentinels that make the one the other when that is gone.

use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::Context as _;

use crate::files::Scratch;
use crate::life::User;
use crate::{Redis, install, ports, spawner, wait};

/// What the Sentinels call the master.
const MASTER: &str = "mymaster";
/// How many of them there are, and how many agree that the master is gone.
const SENTINELS: usize = 3;
const QUORUM: usize = 2;
/// Longest time for a failover.
const FAILOVER: Duration = Duration::from_secs(40);

/// Two servers, of which one is the master, and three Sentinels with a password, which take a second of silence for its end.
#[derive(Debug)]
pub struct SentinelRedis {
    /// The servers; the first is the first master.
    pub nodes: [Redis; 2],
    /// The Sentinels.
    pub sentinels: Vec<Sentinel>,
}

/// A Sentinel.
#[derive(Debug)]
pub struct Sentinel {
    _scratch: Scratch,
    port: u16,
    child: Option<Child>,
}

impl SentinelRedis {
    /// The password of the Sentinels.
    pub const PASSWORD: &str = "sentinel-secret";

    /// Starts them, with further options of the servers, and waits until all of them know each other.
    pub async fn start(options: &[&str]) -> anyhow::Result<Self> {
        // A replica is copied to at once.
        let options = [options, &["--repl-diskless-sync-delay", "0"]].concat();
        let master = Redis::start_with(&options).await?;
        let port = master.port().to_string();
        let replica =
            Redis::start_with(&[&options[..], &["--replicaof", "127.0.0.1", &port]].concat()).await?;
        let mut sentinels = Vec::new();
        for _ in 0..SENTINELS {
            sentinels.push(Sentinel::start(master.port(), QUORUM, "").await?);
        }
        let all = Self { nodes: [master, replica], sentinels };
        all.wait_for_replica().await?;
        wait::eventually_within(FAILOVER, "the Sentinels know each other and the replica", || async {
            for sentinel in &all.sentinels {
                let told = sentinel.ask::<std::collections::HashMap<String, String>>("MASTER").await?;
                let number = |name: &str| told.get(name).and_then(|text| text.parse::<usize>().ok());
                let knows_all = number("num-slaves") == Some(1)
                    && number("num-other-sentinels") == Some(SENTINELS - 1)
                    && told.get("flags").is_some_and(|flags| flags == "master");
                anyhow::ensure!(knows_all, "{told:?}");
            }
            anyhow::Ok(())
        })
        .await?;
        Ok(all)
    }

    /// URLs of the Sentinels, with their password.
    #[must_use]
    pub fn sentinel_urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Sentinel::url).collect()
    }

    /// The number of the node that a Sentinel takes for the master.
    pub async fn master(&self) -> anyhow::Result<usize> {
        let mut told = None;
        for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.child.is_some()) {
            told = Some(sentinel.ask::<(String, u16)>("GET-MASTER-ADDR-BY-NAME").await?.1);
        }
        let port = told.context("no Sentinel runs")?;
        self.nodes.iter().position(|node| node.port() == port).context("a master that is not ours")
    }

    /// Waits until the second node has all that the first one has, whose replica it is.
    pub async fn wait_for_replica(&self) -> anyhow::Result<()> {
        let [master, replica] = &self.nodes;
        let offset = async |node: &Redis, field: &str| {
            let mut connection = redis::Client::open(node.url())?.get_multiplexed_async_connection().await?;
            let info: String = redis::cmd("INFO").arg("replication").query_async(&mut connection).await?;
            let found = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            Ok::<_, anyhow::Error>(found.map(|value| value.trim().to_owned()))
        };
        wait::eventually_within(FAILOVER, "the replica has everything", || async {
            let there = offset(replica, "slave_repl_offset").await?;
            let link = offset(replica, "master_link_status").await?;
            anyhow::ensure!(link.as_deref() == Some("up"), "{link:?}");
            anyhow::ensure!(there == offset(master, "master_repl_offset").await?, "{there:?}");
            Ok(())
        })
        .await
    }

    /// Kills the master with -9 and waits until the Sentinels name the other one.
    pub async fn fail_over(&mut self) -> anyhow::Result<()> {
        let old = self.master().await?;
        self.nodes[old].kill()?;
        let this = &*self;
        wait::eventually_within(FAILOVER, "the Sentinels name another master", || async {
            match this.master().await {
                Ok(master) if master != old => Ok(()),
                Ok(_) => Err("still the old one".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
    }
}

impl Sentinel {
    /// Starts one that watches the master at a port, with further lines of its configuration.
    pub async fn start(master: u16, quorum: usize, settings: &str) -> anyhow::Result<Self> {
        let scratch = Scratch::new("sentinel")?;
        let port = ports::free_port()?;
        let file = scratch.path().join("sentinel.conf");
        let password = SentinelRedis::PASSWORD;
        // It writes what it learns into this file.
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nrequirepass {password}\nsentinel monitor {MASTER} 127.0.0.1 {master} {quorum}\n\
             sentinel sentinel-pass {password}\nsentinel down-after-milliseconds {MASTER} 1000\n\
             sentinel failover-timeout {MASTER} 10000\n{settings}\n",
            scratch.path().display()
        );
        std::fs::write(&file, text)?;
        let mut command = install::Server::Redis.program()?.bound_command(User::Same);
        command
            .arg(&file)
            .arg("--sentinel")
            .current_dir(scratch.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = Some(spawner::spawn(command).context("cannot start redis-server --sentinel")?);
        let sentinel = Self { _scratch: scratch, port, child };
        wait::eventually_within(Duration::from_secs(20), "the Sentinel answers", || async {
            sentinel.ask::<(String, u16)>("GET-MASTER-ADDR-BY-NAME").await.map(drop)
        })
        .await?;
        Ok(sentinel)
    }

    /// Its URL, with the password.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://:{}@127.0.0.1:{}", SentinelRedis::PASSWORD, self.port)
    }

    async fn ask<T: redis::FromRedisValue>(&self, what: &str) -> anyhow::Result<T> {
        let client = redis::Client::open(self.url())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        Ok(redis::cmd("SENTINEL").arg(what).arg(MASTER).query_async(&mut connection).await?)
    }

    /// Kills it with -9.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
