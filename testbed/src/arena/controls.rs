//! What a scripted trial does by hand.

use std::time::Duration;

use anyhow::Context as _;
use sqlx::{Connection as _, PgConnection, Row as _};

use super::Arena;
use super::config::RUNGS;
use super::member::environment;
use crate::checker::{Act, mirror};
use crate::{Broker, Process, Servers, Urls, eventually_within};

/// Locks that handlers wait for; let go when dropped or [`Gate::open`]ed.
#[derive(Debug)]
pub struct Gate(PgConnection);

impl Gate {
    /// Lets everybody through.
    pub async fn open(self) -> anyhow::Result<()> {
        Ok(self.0.close().await?)
    }

    /// Lets those through that wait for [`Act::Gate`]'s lock, not for [`Act::SecondGate`]'s.
    pub async fn open_first(&mut self) -> anyhow::Result<()> {
        sqlx::query("select pg_advisory_unlock($1)").bind(Act::GATE).execute(&mut self.0).await?;
        Ok(())
    }
}

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

impl Arena {
    /// Name of the work queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// Where the servers are.
    #[must_use]
    pub fn urls(&self) -> &Urls {
        self.servers.urls()
    }

    /// Where the servers are, and this arena's database on one of them.
    pub(super) fn database_urls(&self) -> Urls {
        Urls { postgres: self.database.url().to_owned(), ..self.servers.urls().clone() }
    }

    /// The environment in which the product's programs work here.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, String); 4] {
        environment(self.scratch.path(), &self.database_urls())
    }

    /// Is this Redis ours? Another one is not touched.
    #[must_use]
    pub fn owns_redis(&self) -> bool {
        self.servers.redis.is_some()
    }

    /// Shuts the gates of [`Act::Gate`] and [`Act::SecondGate`].
    pub async fn shut_gates(&self) -> anyhow::Result<Gate> {
        let mut connection = self.connect().await?;
        sqlx::query("select pg_advisory_lock($1), pg_advisory_lock($1 + 1)")
            .bind(Act::GATE)
            .execute(&mut connection)
            .await?;
        Ok(Gate(connection))
    }

    /// Waits until this number of sessions waits for a lock, or for another transaction's end.
    pub async fn wait_for_sessions(&self, wanted: i64) -> anyhow::Result<()> {
        let query = "select count(distinct pid) from pg_locks where not granted";
        self.wait_until("sessions that wait", query, wanted).await
    }

    /// Waits until exactly this number of sessions waits for a lock; returns whether it came to that within the limit.
    pub async fn wait_for_sessions_within(&self, wanted: i64, within: Duration) -> bool {
        let waits = async {
            let mut connection = self.connect().await.ok()?;
            loop {
                let query = sqlx::query_scalar("select count(distinct pid) from pg_locks where not granted");
                let found: i64 = query.fetch_one(&mut connection).await.ok()?;
                if found == wanted {
                    return Some(());
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        matches!(tokio::time::timeout(within, waits).await, Ok(Some(())))
    }

    /// Waits until a query gives this number.
    pub async fn wait_until(&self, what: &str, query: &'static str, wanted: i64) -> anyhow::Result<()> {
        eventually_within(PATIENCE, what, || async {
            let mut connection = self.connect().await?;
            let found: i64 = sqlx::query(query).fetch_one(&mut connection).await?.get(0);
            anyhow::ensure!(found == wanted, "{found} instead of {wanted}");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until at least this number of runs has taken effect.
    pub async fn wait_for_effects(&self, wanted: i64) -> anyhow::Result<()> {
        eventually_within(PATIENCE, "effects", || async {
            let mut connection = self.connect().await?;
            let found: i64 =
                sqlx::query_scalar("select count(*) from judge.log").fetch_one(&mut connection).await?;
            anyhow::ensure!(found >= wanted, "{found} instead of {wanted}");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until what has taken effect is in the mirror.
    pub async fn wait_until_mirrored(&self) -> anyhow::Result<()> {
        self.wait_until("an empty mirror queue", "select count(*) from oncely.mirror_queue", 0).await
    }

    /// Waits until the log of a worker has a text this number of times.
    pub async fn wait_for_log(&self, worker: usize, text: &str, times: usize) -> anyhow::Result<()> {
        let member = self.workers.get(worker).context("no such worker")?;
        eventually_within(PATIENCE, text, || async {
            let said = member.process.output().matches(text).count();
            if said >= times { Ok(()) } else { Err(said) }
        })
        .await
    }

    /// Runs statements of ours.
    pub async fn sql(&self, statements: &'static str) -> anyhow::Result<()> {
        let mut connection = self.connect().await?;
        sqlx::raw_sql(statements).execute(&mut connection).await?;
        Ok(())
    }

    /// A client of the broker.
    pub async fn broker(&self) -> anyhow::Result<Broker> {
        Broker::connect(&self.servers.urls().rabbitmq).await
    }

    /// Runs the program `oncely` to its end, with the environment that workers and relays have.
    pub async fn oncely(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let output = self.oncely_command(arguments).output().await?;
        let text = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "oncely {}: {text}", arguments.join(" "));
        Ok(())
    }

    /// Starts the program `oncely` beside the others, with the environment that workers and relays have; its output is in the arena's folder.
    pub fn start_oncely(&self, arguments: &[&str], name: &str) -> anyhow::Result<Process> {
        let environment = self.environment();
        let environment: Vec<_> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        Process::start(
            &self.config.oncely,
            arguments,
            &environment,
            &self.folder().join(format!("{name}.log")),
        )
    }

    /// Adds to the configuration file, declares what it names, and starts all processes again with it. `queue`: of the consumer that came
    /// with it, whose ladder is of the usual rungs.
    pub async fn restart_with(&mut self, more: &str, queue: &str) -> anyhow::Result<()> {
        let file = self.folder().join("oncely.toml");
        let text = std::fs::read_to_string(&file)? + more;
        std::fs::write(&file, text)?;
        self.more_queues.push(queue.to_owned());
        self.oncely(&["topology", "apply"]).await?;
        self.members().try_for_each(|member| member.process.start_again())
    }

    /// What the mirror holds now is of another epoch: the judge does not look at it.
    pub async fn forget_mirror(&mut self) -> anyhow::Result<()> {
        let entries = mirror::read_entries(&self.servers.urls().redis).await?;
        self.junk.extend(entries.into_iter().map(|entry| entry.field));
        Ok(())
    }

    /// From now on the judge wants every completed key in the mirror.
    pub fn want_complete_mirror(&mut self) {
        self.complete_mirror = true;
    }

    /// From now on the judge wants every row of the trail in the partition of its week.
    pub fn want_partitions(&mut self) {
        self.partitions = true;
    }

    /// Ends the processes, removes queues and database, and leaves the servers as they were.
    pub async fn clear(mut self) -> anyhow::Result<()> {
        self.kill_all()?;
        let broker = self.broker().await?;
        for queue in self.more_queues.iter().chain([&self.queue]) {
            broker.delete_topology(queue, &RUNGS).await?;
        }
        self.database.clone().drop_now().await
    }

    /// Ends the processes, empties Redis, and leaves the servers for another trial.
    pub async fn leave(mut self) -> anyhow::Result<Servers> {
        self.charging = None;
        self.doors = None;
        self.gateways = None;
        self.observer = None;
        self.kill_all()?;
        let client = redis::Client::open(self.servers.urls().redis.as_str())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await?;
        self.watch = None;
        self.database.clone().drop_now().await?;
        Ok(self.servers)
    }

    fn kill_all(&mut self) -> anyhow::Result<()> {
        self.members().try_for_each(|member| member.process.kill())
    }
}
