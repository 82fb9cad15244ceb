//! A run's own database, queue and configuration: each begins with empty tables.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use lapin::ExchangeKind;
use lapin::types::{AMQPValue, FieldTable};
use sqlx::{PgConnection, Row as _};
use testbed::{Broker, Database, Process, cpu_time, eventually_within, free_port};
use tokio_util::task::AbortOnDropHandle;

use super::configuration::consumer;
use super::job::{Consumer, Handler, Job, Keys, Publisher};
use super::scrape::scrape;
use super::stage::Stage;

/// What events are published with; their exchange is called like the queue.
pub(crate) const ROUTING_KEY: &str = "captured";

/// Settings of all programs. Over a network, the servers are no servers of this machine to them.
pub(crate) const COMMON: &str = r#"[log]
level = "warn"
[postgres]
allow_plaintext = true
[rabbitmq]
allow_plaintext = true
[redis]
allow_plaintext = true
"#;

#[derive(Debug)]
pub(crate) struct Site<'s> {
    pub(crate) stage: &'s Stage,
    pub(crate) job: Job,
    pub(crate) database: Database,
    pub(crate) queue: String,
    /// Completed keys that were there before, each with an audit row.
    pub(crate) prefilled: u64,
    /// The database's URL for programs.
    database_url: String,
    configuration: PathBuf,
    started: u32,
    /// Where worker and relay tell their metrics.
    listens: Vec<u16>,
    /// Of further consumers.
    more_queues: Vec<String>,
}

/// A process under measurement.
#[derive(Debug)]
pub(crate) struct Member {
    /// `naive`, `worker` or `relay`.
    pub(crate) role: &'static str,
    pub(crate) process: Process,
}

impl<'s> Site<'s> {
    pub(crate) async fn prepare(stage: &'s Stage, job: &Job) -> anyhow::Result<Self> {
        let database = Database::create(&stage.servers.urls().postgres).await?;
        // As long as a name of real life: it is in each row of the trail.
        let queue = format!("payments-{:08x}", fastrand::u32(..));
        let configuration = stage.scratch.path().join(format!("{queue}.toml"));
        let listens = match &job.consumer {
            Consumer::Ours(ours) if ours.metrics => vec![free_port()?, free_port()?],
            _ => Vec::new(),
        };
        let site = Self {
            stage,
            job: job.clone(),
            database_url: stage.database_url(&database),
            database,
            queue,
            prefilled: 0,
            configuration,
            started: 0,
            listens,
            more_queues: Vec::new(),
        };
        let mut connection = site.database.connect().await?;
        match &job.consumer {
            Consumer::Naive(_) | Consumer::NaiveHot(_) => {
                let keys = match &job.consumer {
                    Consumer::Naive(keys) => *keys,
                    _ => Keys::Article,
                };
                sqlx::raw_sql(include_str!("schema.sql")).execute(&mut connection).await?;
                sqlx::raw_sql(keys.schema()).execute(&mut connection).await?;
                sqlx::raw_sql(include_str!("naive.sql")).execute(&mut connection).await?;
                site.broker().await?.declare_queue(&site.queue, site.queue_arguments()).await?;
            }
            Consumer::Bare => {
                site.broker().await?.declare_queue(&site.queue, site.queue_arguments()).await?;
            }
            Consumer::Ours(_) | Consumer::Raw => {
                let handler = match &job.consumer {
                    Consumer::Ours(ours) => ours.handler,
                    _ => Handler::Batch,
                };
                std::fs::write(&site.configuration, site.toml(handler))?;
                site.oncely(&["migrate"]).await?;
                sqlx::raw_sql(include_str!("schema.sql")).execute(&mut connection).await?;
                sqlx::raw_sql(include_str!("handlers.sql")).execute(&mut connection).await?;
                site.oncely(&["topology", "apply"]).await?;
            }
            Consumer::Nobody(publisher) => {
                let broker = site.broker().await?;
                broker.declare_queue(&site.queue, site.queue_arguments()).await?;
                broker.declare_exchange(&site.queue, ExchangeKind::Direct).await?;
                broker.bind(&site.queue, &site.queue, ROUTING_KEY).await?;
                std::fs::write(&site.configuration, COMMON)?;
                match publisher {
                    Publisher::Relay { .. } => site.oncely(&["migrate"]).await?,
                    Publisher::OutboxCore => {
                        sqlx::raw_sql(include_str!("outbox_core.sql")).execute(&mut connection).await?;
                    }
                    Publisher::Bare => {}
                }
            }
        }
        stage.flush_redis().await?;
        Ok(site)
    }

    /// Further consumers beside `payments`, each of a queue of its own.
    pub(crate) async fn add_consumers(&mut self, names: &[&str]) -> anyhow::Result<()> {
        let mut text = self.toml(Handler::Batch);
        for name in names {
            let queue = format!("{}-{name}", self.queue);
            text.push_str(&consumer(name, &queue, self.job.queue_type, Handler::Batch));
            self.more_queues.push(queue);
        }
        std::fs::write(&self.configuration, text)?;
        self.oncely(&["topology", "apply"]).await
    }

    fn queue_arguments(&self) -> FieldTable {
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(self.job.queue_type.name().into()));
        arguments
    }

    fn toml(&self, handler: Handler) -> String {
        let listen = match &self.listens[..] {
            [worker, relay] => format!(
                "[worker]\nlisten = \"127.0.0.1:{worker}\"\n[relay]\nlisten = \"127.0.0.1:{relay}\"\n"
            ),
            _ => String::new(),
        };
        let payments = consumer("payments", &self.queue, self.job.queue_type, handler);
        format!("{listen}{COMMON}\n{payments}")
    }

    /// Appends lines to the configuration: those of the consumer, then further tables.
    pub(crate) fn append_to_configuration(&self, lines: &str) -> anyhow::Result<()> {
        let text = std::fs::read_to_string(&self.configuration)? + lines;
        Ok(std::fs::write(&self.configuration, text)?)
    }

    pub(crate) fn environment(&self) -> [(&str, &str); 4] {
        let urls = self.stage.urls();
        [
            ("ONCELY_CONFIG", self.configuration.to_str().unwrap_or_default()),
            ("DATABASE_URL", &self.database_url),
            ("AMQP_URL", &urls.rabbitmq),
            ("REDIS_URL", &urls.redis),
        ]
    }

    pub(crate) async fn oncely(&self, arguments: &[&str]) -> anyhow::Result<()> {
        self.stage.run("oncely", arguments, &self.environment()).await
    }

    /// A client of the benchmark, to its end.
    pub(crate) async fn client(&self, arguments: &[&str]) -> anyhow::Result<()> {
        self.stage.run("bench", arguments, &self.environment()).await
    }

    pub(crate) async fn broker(&self) -> anyhow::Result<Broker> {
        Broker::connect(&self.stage.servers.urls().rabbitmq).await
    }

    pub(crate) async fn connect(&self) -> anyhow::Result<PgConnection> {
        self.database.connect().await
    }

    /// Puts completed keys into the table, as if messages had come so many days ago; where wanted, each with its row in
    /// the audit trail.
    pub(crate) async fn prefill(&mut self, keys: u64, days: i32, audit: bool) -> anyhow::Result<()> {
        const CHUNK: u64 = 1_000_000;
        let mut connection = self.connect().await?;
        let mut left = keys;
        while left > 0 {
            let rows = left.min(CHUNK);
            sqlx::query(include_str!("prefill.sql"))
                .bind(i64::try_from(rows)?)
                .bind(days)
                .bind(audit)
                .execute(&mut connection)
                .await?;
            left -= rows;
        }
        self.prefilled += keys;
        // What autovacuum would have done by the time that so many have come.
        sqlx::raw_sql("vacuum analyze").execute(&mut connection).await?;
        self.settle().await
    }

    /// The same with a copy of the database as it is now, on the same queue: one at a time.
    pub(crate) async fn copy(&self) -> anyhow::Result<Self> {
        let database = self.database.copy().await?;
        let database_url = self.stage.database_url(&database);
        let (job, queue, configuration) = (self.job.clone(), self.queue.clone(), self.configuration.clone());
        let (listens, more_queues) = (self.listens.clone(), self.more_queues.clone());
        Ok(Self { database, database_url, job, queue, configuration, listens, more_queues, ..*self })
    }

    /// Fills the queue (or the table of events) with the job's messages, then lets the servers finish what that left behind.
    pub(crate) async fn fill(&self, seed: u64) -> anyhow::Result<()> {
        let job = &self.job;
        if let Consumer::Nobody(publisher) = job.consumer {
            self.write_events(publisher).await?;
            return self.settle().await;
        }
        self.publish(seed).await?;
        self.settle().await
    }

    /// Fills the queue with the job's messages.
    pub(crate) async fn publish(&self, seed: u64) -> anyhow::Result<()> {
        let job = &self.job;
        let (messages, seed, poison, refused) = (
            job.messages.to_string(),
            seed.to_string(),
            job.poison_every.to_string(),
            job.refused_of_ten.to_string(),
        );
        self.client(&[
            "publish",
            "--queue",
            &self.queue,
            "--messages",
            &messages,
            "--seed",
            &seed,
            "--poison-every",
            &poison,
            "--refused-of-ten",
            &refused,
        ])
        .await
    }

    /// Waits until this number of consumers reads the queue.
    pub(crate) async fn wait_for_consumers(&self, processes: usize) -> anyhow::Result<()> {
        let broker = self.broker().await?;
        eventually_within(Duration::from_secs(60), "all consume", || async {
            let (_, consumers) = broker.depth(&self.queue).await?;
            anyhow::ensure!(consumers as usize >= processes, "{consumers} consumers");
            Ok(())
        })
        .await
    }

    async fn write_events(&self, publisher: Publisher) -> anyhow::Result<()> {
        let mut connection = self.connect().await?;
        let messages = i64::try_from(self.job.messages)?;
        match publisher {
            Publisher::Bare => return Ok(()),
            Publisher::Relay { ordering_keys } => {
                sqlx::query(include_str!("emit.sql"))
                    .bind(messages)
                    .bind(&self.queue)
                    .bind(ROUTING_KEY)
                    .bind(i64::try_from(ordering_keys)?)
                    .execute(&mut connection)
                    .await?
            }
            Publisher::OutboxCore => {
                sqlx::query(include_str!("outbox_core_fill.sql"))
                    .bind(messages)
                    .bind(ROUTING_KEY)
                    .execute(&mut connection)
                    .await?
            }
        };
        sqlx::raw_sql("vacuum analyze").execute(&mut connection).await?;
        Ok(())
    }

    /// A checkpoint, so that each run begins with the same (all) full-page images ahead; then until the broker is idle, and has
    /// been for so long that its queues have gone to sleep (`hibernate`: after a second or two without work they compact
    /// their memory). Before that, a run would begin with whatever memory the publisher has left them.
    pub(crate) async fn settle(&self) -> anyhow::Result<()> {
        sqlx::raw_sql("checkpoint").execute(&mut self.connect().await?).await?;
        const SPAN: Duration = Duration::from_millis(250);
        const SPANS: u32 = 10;
        let pid = self.stage.rabbitmq_pid()?;
        let start = Instant::now();
        let mut idle = 0;
        while idle < SPANS {
            anyhow::ensure!(start.elapsed() < Duration::from_secs(60), "the broker does not become idle");
            let before = cpu_time(pid).context("no CPU time")?;
            tokio::time::sleep(SPAN).await;
            let used = cpu_time(pid).context("no CPU time")?.saturating_sub(before);
            idle = if used < SPAN / 10 { idle + 1 } else { 0 };
        }
        Ok(())
    }

    /// Reads the metrics for as long as what it returns lives.
    pub(crate) fn scrape(&self) -> Vec<AbortOnDropHandle<()>> {
        scrape(&self.listens)
    }

    /// Starts the consumers of the job.
    pub(crate) fn start(&mut self) -> anyhow::Result<Vec<Member>> {
        let mut members = Vec::new();
        match self.job.consumer.clone() {
            Consumer::Naive(keys) => {
                let queue = self.queue.clone();
                let mut arguments = vec!["naive", "--queue", &queue];
                arguments.extend((keys == Keys::Held).then_some("--held"));
                members.push(self.member("naive", "bench", &arguments)?);
            }
            Consumer::NaiveHot(hot) => {
                let queue = self.queue.clone();
                members.push(self.member(
                    "naive",
                    "bench",
                    &["naive", "--queue", &queue, "--hot", hot.naive()],
                )?);
            }
            Consumer::Bare => {
                let queue = self.queue.clone();
                members.push(self.member("bare", "bench", &["consume", "--queue", &queue])?);
            }
            Consumer::Raw => {
                let (queue, messages) = (self.queue.clone(), self.job.messages.to_string());
                let arguments = [
                    "raw",
                    "--queue",
                    &queue,
                    "--messages",
                    &messages,
                    "--seed",
                    "1",
                    "--batch",
                    "500",
                    "--lanes",
                    "2",
                ];
                members.push(self.member("raw", "bench", &arguments)?);
            }
            Consumer::Nobody(publisher) => members.push(self.publisher(publisher)?),
            Consumer::Ours(ours) => {
                if ours.relay {
                    members.push(self.member("relay", "relay", &[])?);
                }
                for _ in 0..ours.workers {
                    members.push(match ours.handler {
                        Handler::Rust => self.member("worker", "bench", &["handler"])?,
                        Handler::RustBatch => self.member("worker", "bench", &["handler", "--batch"])?,
                        Handler::Leased { call, .. } => {
                            self.member("worker", "bench", &["leased", "--call", &call.to_string()])?
                        }
                        _ => self.member("worker", "worker", &[])?,
                    });
                }
            }
        }
        Ok(members)
    }

    fn publisher(&mut self, publisher: Publisher) -> anyhow::Result<Member> {
        let (queue, messages) = (self.queue.clone(), self.job.messages.to_string());
        match publisher {
            Publisher::Relay { .. } => self.member("relay", "relay", &[]),
            Publisher::Bare => {
                let arguments = [
                    "publish",
                    "--exchange",
                    &queue,
                    "--queue",
                    ROUTING_KEY,
                    "--messages",
                    &messages,
                    "--seed",
                    "1",
                ];
                self.member("bare", "bench", &arguments)
            }
            Publisher::OutboxCore => self.member("outbox-core", "bench-outbox", &["--exchange", &queue]),
        }
    }

    pub(crate) fn member(
        &mut self,
        role: &'static str,
        program: &str,
        arguments: &[&str],
    ) -> anyhow::Result<Member> {
        self.started += 1;
        let log = self.configuration.with_extension(format!("{role}-{}.log", self.started));
        let process = self.stage.start(program, arguments, &self.environment(), &log)?;
        if self.stage.pids {
            let postgres = self.stage.postgres_pid()?;
            eprintln!(
                "{role}: process {}; PostgreSQL: {postgres}; database {}",
                process.id(),
                self.database.url()
            );
        }
        Ok(Member { role, process })
    }

    /// Waits until the relay has emptied the mirror queue, where there is one.
    pub(crate) async fn wait_until_drained(&self) -> anyhow::Result<()> {
        if !matches!(&self.job.consumer, Consumer::Ours(ours) if ours.relay) {
            return Ok(());
        }
        let mut connection = self.connect().await?;
        let start = Instant::now();
        while sqlx::query("select exists (select from oncely.mirror_queue)")
            .fetch_one(&mut connection)
            .await?
            .get(0)
        {
            anyhow::ensure!(
                start.elapsed() < Duration::from_secs(60),
                "the mirror queue does not become empty"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Waits until each message that was handed out is acknowledged: the broker tells only its own tool.
    pub(crate) async fn wait_until_acknowledged(&self) -> anyhow::Result<()> {
        let rabbitmq = self.stage.servers.rabbitmq.as_ref().context("no RabbitMQ of our own")?;
        eventually_within(Duration::from_secs(60), "all is acknowledged", || async {
            let queues = rabbitmq.ctl(&["--quiet", "list_queues", "name", "messages"]).await?;
            let left = queues.lines().find_map(|line| line.strip_prefix(&self.queue)?.strip_prefix('\t'));
            anyhow::ensure!(left.map(str::trim) == Some("0"), "{left:?} messages are left");
            Ok(())
        })
        .await
    }

    /// Ends the consumers; the queue must then be empty, what was not acknowledged included.
    pub(crate) async fn finish(&self, members: Vec<Member>) -> anyhow::Result<()> {
        for mut member in members {
            if let Some(status) = member.process.status() {
                anyhow::bail!("{} ended: {status}\n{}", member.role, member.process.output());
            }
            if member.role == "naive" {
                // It has no orderly end: what it has committed and not yet acknowledged would come back.
                self.wait_until_acknowledged().await?;
            }
            let status = member.process.terminate(Duration::from_secs(40)).await?;
            anyhow::ensure!(
                ["naive", "raw", "bare", "outbox-core"].contains(&member.role) || status.success(),
                "{}: {status}\n{}",
                member.role,
                member.process.output()
            );
        }
        let broker = self.broker().await?;
        eventually_within(Duration::from_secs(20), "the broker has noticed", || async {
            let (ready, consumers) = broker.depth(&self.queue).await?;
            anyhow::ensure!(consumers == 0, "{consumers} consumers");
            anyhow::ensure!(ready == 0, "{ready} messages are left in the queue");
            Ok(())
        })
        .await
    }

    /// Removes database and queues.
    pub(crate) async fn clear(self) -> anyhow::Result<()> {
        let broker = self.broker().await?;
        broker.delete_exchange(&self.queue).await?;
        // Those of oncely.default.toml.
        for queue in std::iter::once(&self.queue).chain(&self.more_queues) {
            broker.delete_topology(queue, &["1s", "10s", "1m", "10m", "1h"]).await?;
        }
        self.database.drop_now().await
    }
}
