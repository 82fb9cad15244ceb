//! Redis: killed, frozen, emptied, full, full of junk.

use anyhow::Context as _;
use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use rustix::process::{Pid, Signal, kill_process};

use super::{Fault, Kind};
use crate::Arena;

impl Arena {
    pub(super) async fn inject_redis(&mut self, fault: &Fault) -> anyhow::Result<()> {
        match fault.kind {
            Kind::KillRedis => {
                // What is wiped can't be looked at any more.
                self.sample_mirror().await?;
                return self.redis()?.kill();
            }
            Kind::FreezeRedis => return self.signal_redis(Signal::STOP),
            _ => {}
        }
        let mut redis = self.redis_connection().await?;
        match fault.kind {
            Kind::FlushRedis => {
                self.sample_mirror().await?;
                command(&mut redis, &["FLUSHALL"]).await
            }
            Kind::RedisOom => command(&mut redis, &["CONFIG", "SET", "maxmemory", "1"]).await,
            // Of a master that does not exist: what it holds stays, writes are refused.
            Kind::RedisReadOnly => command(&mut redis, &["REPLICAOF", "127.0.0.1", "1"]).await,
            Kind::PauseRedis => {
                let millis = fault.hold.as_millis().to_string();
                command(&mut redis, &["CLIENT", "PAUSE", &millis, "ALL"]).await
            }
            Kind::KillRedisClients => command(&mut redis, &["CLIENT", "KILL", "TYPE", "normal"]).await,
            Kind::JunkInRedis => self.write_junk(&mut redis, fault.target).await,
            _ => Ok(()),
        }
    }

    pub(super) async fn heal_redis(&mut self, fault: &Fault) -> anyhow::Result<()> {
        match fault.kind {
            Kind::KillRedis => self.redis()?.restart().await,
            Kind::FreezeRedis => self.signal_redis(Signal::CONT),
            Kind::RedisOom => {
                command(&mut self.redis_connection().await?, &["CONFIG", "SET", "maxmemory", "0"]).await
            }
            Kind::RedisReadOnly => {
                command(&mut self.redis_connection().await?, &["REPLICAOF", "NO", "ONE"]).await
            }
            _ => Ok(()),
        }
    }

    fn signal_redis(&mut self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.redis()?.pid().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        Ok(kill_process(pid.context("Redis does not run")?, signal)?)
    }

    async fn redis_connection(&self) -> anyhow::Result<MultiplexedConnection> {
        let client = redis::Client::open(self.servers.urls().redis.clone())?;
        Ok(client.get_multiplexed_async_connection().await?)
    }

    /// A third of the buckets become lists, the others get fields that are nobody's tags.
    async fn write_junk(&mut self, redis: &mut MultiplexedConnection, seed: usize) -> anyhow::Result<()> {
        self.sample_mirror().await?;
        let names: Vec<String> = redis.keys("oncely:2:*").await?;
        for (number, name) in names.iter().enumerate().take(300) {
            if number % 3 == 0 {
                // In one transaction: a relay may write the same key in between.
                let () =
                    redis::pipe().atomic().del(name).lpush(name, "junk").ignore().query_async(redis).await?;
            } else {
                let mut field = format!("junk{number:06}{seed:06}").into_bytes();
                field.truncate(16);
                let _: Result<(), _> = redis.hset(name, &field, "").await;
                self.junk.insert(field);
            }
        }
        Ok(())
    }
}

async fn command(redis: &mut MultiplexedConnection, words: &[&str]) -> anyhow::Result<()> {
    let (name, arguments) = words.split_first().context("no command")?;
    let mut command = redis::cmd(name);
    for word in arguments {
        command.arg(*word);
    }
    let answer: Result<redis::Value, redis::RedisError> = command.query_async(redis).await;
    match answer {
        // Our own connection may be among those that are killed.
        Err(error) if words.contains(&"KILL") && error.is_io_error() => Ok(()),
        answer => Ok(answer.map(drop)?),
    }
}
