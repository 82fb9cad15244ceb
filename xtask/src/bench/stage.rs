//! The servers and the programs of a benchmark.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;
use sqlx::{Connection as _, PgConnection, Row as _};
use testbed::{Database, Process, Scratch, Servers, Urls, eventually_within};

use super::Arguments;
use super::network::{Network, RoundTrips};
use crate::process;

#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) servers: Servers,
    pub(crate) scratch: Scratch,
    /// Folder of `worker`, `relay` and `oncely`.
    binaries: PathBuf,
    /// The program `bench`.
    clients: PathBuf,
    /// The program `bench-outbox`, once it is built.
    peer: OnceLock<PathBuf>,
    /// Say on stderr which processes are measured.
    pub(crate) pids: bool,
    /// Of classic queues, where it is not the server's default.
    queue_version: Option<u8>,
    /// Time of a round trip between programs and servers, where there is a network.
    round_trip: Option<Duration>,
    pub(crate) network: Option<Network>,
    pub(crate) round_trips: Option<RoundTrips>,
}

/// What a commit and a page must survive; PostgreSQL's own defaults.
const DURABLE: [&str; 3] = ["fsync", "synchronous_commit", "full_page_writes"];

impl Stage {
    /// Builds the programs, but for those that are given, and starts private servers.
    pub(crate) async fn set(arguments: &Arguments) -> anyhow::Result<Self> {
        Self {
            pids: arguments.pids,
            queue_version: arguments.queue_version,
            round_trip: arguments.network,
            ..Self::launch(arguments.binaries.as_deref()).await?
        }
        .prepare()
        .await
    }

    /// Does the same without the settings of a benchmark.
    pub(crate) async fn set_plain(given: Option<&Path>) -> anyhow::Result<Self> {
        Self::launch(given).await?.prepare().await
    }

    async fn launch(given: Option<&Path>) -> anyhow::Result<Self> {
        let given = given.map(|folder| (folder.to_owned(), folder.join("bench")));
        let (binaries, clients) = match given {
            Some((binaries, clients)) if clients.exists() => (binaries, clients),
            given => {
                let built = process::build_release()?;
                (given.map_or_else(|| built.clone(), |(binaries, _)| binaries), built.join("bench"))
            }
        };
        for program in ["worker", "relay", "oncely"] {
            anyhow::ensure!(binaries.join(program).exists(), "{} has no {program}", binaries.display());
        }
        Ok(Self {
            servers: start(&[]).await?,
            scratch: Scratch::new("bench")?,
            binaries,
            clients,
            peer: OnceLock::new(),
            pids: false,
            queue_version: None,
            round_trip: None,
            network: None,
            round_trips: None,
        })
    }

    /// Other servers in place of these: PostgreSQL notes when each transaction committed, and has these settings, too.
    pub(crate) async fn with_commit_times(self, settings: &[&str]) -> anyhow::Result<Self> {
        // Never six servers at once.
        drop(self.servers);
        let servers = start(&[&["track_commit_timestamp=on"], settings].concat()).await?;
        Self { servers, ..self }.prepare().await
    }

    /// With servers that are as the readers of the figures will think they are.
    async fn prepare(mut self) -> anyhow::Result<Self> {
        let mut connection = PgConnection::connect(&self.servers.urls().postgres).await?;
        for setting in DURABLE {
            let value: String = sqlx::query("select current_setting($1)")
                .bind(setting)
                .fetch_one(&mut connection)
                .await?
                .get(0);
            anyhow::ensure!(
                value == "on",
                "{setting} is {value}: these would be figures of another database"
            );
        }
        connection.close().await?;
        if let Some(version) = self.queue_version {
            let rabbitmq = self.servers.rabbitmq.as_ref().context("no RabbitMQ of our own")?;
            let policy = format!("{{\"queue-version\": {version}}}");
            rabbitmq.ctl(&["set_policy", "queue-version", ".*", &policy, "--apply-to", "queues"]).await?;
        }
        if let Some(round_trip) = self.round_trip {
            self.add_network(round_trip).await?;
        }
        Ok(self)
    }

    /// Puts a network between programs and servers, and measures it.
    async fn add_network(&mut self, round_trip: Duration) -> anyhow::Result<()> {
        self.network = None;
        let loopback = self.measure_round_trip().await?;
        self.network = Some(Network::create(&self.servers, Duration::ZERO, &self.scratch).await?);
        let no_delay = self.measure_round_trip().await?;
        self.network = Some(Network::create(&self.servers, round_trip, &self.scratch).await?);
        let delayed = self.measure_round_trip().await?;
        let statements = self.measure_statements().await?;
        let round_trips = RoundTrips { loopback, no_delay, delayed, statements };
        eprintln!("{round_trips}");
        self.round_trips = Some(round_trips);
        Ok(())
    }

    /// Returns the median of round trips from a program to Redis and back, in milliseconds.
    async fn measure_round_trip(&self) -> anyhow::Result<f64> {
        let environment = [("REDIS_URL", self.urls().redis.as_str())];
        let measured = eventually_within(Duration::from_secs(30), "Redis answers over the link", || {
            self.ask("bench", &["round-trip"], &environment)
        });
        let measured: Value = serde_json::from_str(&measured.await?)?;
        measured["p50_ms"].as_f64().context("no time")
    }

    /// Returns the times of statements with parameters of several sizes, of which the larger ones take several packets.
    async fn measure_statements(&self) -> anyhow::Result<Value> {
        let environment = [("DATABASE_URL", self.urls().postgres.as_str())];
        let arguments = ["statement", "--bytes", "300,1500,4000,10000"];
        Ok(serde_json::from_str(&self.ask("bench", &arguments, &environment).await?)?)
    }

    /// Returns the servers' URLs for programs.
    pub(crate) fn urls(&self) -> &Urls {
        self.network.as_ref().map_or_else(|| self.servers.urls(), |network| &network.urls)
    }

    /// Returns a database's URL for programs.
    pub(crate) fn database_url(&self, database: &Database) -> String {
        match &self.network {
            None => database.url().to_owned(),
            Some(network) => {
                let server = network.urls.postgres.rsplit_once('/').map_or("", |(server, _)| server);
                format!("{server}/{}", database.name())
            }
        }
    }

    /// Starts a program; its output is appended to `log`.
    pub(crate) fn start(
        &self,
        program: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
        log: &Path,
    ) -> anyhow::Result<Process> {
        let (program, mut all) = self.command(program);
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        Process::start(&program, &all, environment, log)
    }

    /// Returns the command of a program, with its first arguments: where there is a network, in the programs' namespace.
    pub(crate) fn command(&self, name: &str) -> (PathBuf, Vec<String>) {
        let program = self.program(name);
        match &self.network {
            None => (program, Vec::new()),
            Some(network) => {
                let (nsenter, mut arguments) = network.namespace.prefix();
                arguments.push(program.display().to_string());
                (nsenter.into(), arguments)
            }
        }
    }

    /// Makes `bench-outbox`: only what needs it has to wait for its crates.
    pub(crate) fn add_peer(&self) -> anyhow::Result<()> {
        let given = self.binaries.join("bench-outbox");
        let program = match given.exists() {
            true => given,
            false => process::build_peers()?.join("bench-outbox"),
        };
        self.peer.get_or_init(|| program);
        Ok(())
    }

    /// One of the programs; the clients of the benchmark are `bench`.
    fn program(&self, name: &str) -> PathBuf {
        match name {
            "bench" => self.clients.clone(),
            "bench-outbox" => self.peer.get().cloned().unwrap_or_default(),
            name => self.binaries.join(name),
        }
    }

    /// Runs a program to its end; fails with its words.
    pub(crate) async fn run(
        &self,
        program: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<()> {
        self.ask(program, arguments, environment).await.map(drop)
    }

    /// The same; what it printed.
    pub(crate) async fn ask(
        &self,
        program: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<String> {
        let (path, first) = self.command(program);
        let output = tokio::process::Command::new(path)
            .args(first)
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("cannot run {program}"))?;
        let text = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "{program} {}: {text}", arguments.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Empties Redis.
    pub(crate) async fn flush_redis(&self) -> anyhow::Result<()> {
        let mut connection = self.redis().await?;
        redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await?;
        Ok(())
    }

    pub(crate) async fn redis(&self) -> anyhow::Result<redis::aio::MultiplexedConnection> {
        let client = redis::Client::open(self.servers.urls().redis.as_str())?;
        // A million keys are emptied in seconds; the client's own limit is half of one.
        let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
        Ok(client.get_multiplexed_async_connection_with_config(&patient).await?)
    }

    pub(crate) fn postgres_pid(&self) -> anyhow::Result<u32> {
        self.servers.postgres.as_ref().and_then(testbed::Postgres::pid).context("no PostgreSQL of our own")
    }

    pub(crate) fn rabbitmq_pid(&self) -> anyhow::Result<u32> {
        self.servers.rabbitmq.as_ref().and_then(testbed::RabbitMq::pid).context("no RabbitMQ of our own")
    }

    pub(crate) fn redis_pid(&self) -> anyhow::Result<u32> {
        self.servers.redis.as_ref().and_then(testbed::Redis::pid).context("no Redis of our own")
    }
}

async fn start(settings: &[&str]) -> anyhow::Result<Servers> {
    eprintln!("starting PostgreSQL, RabbitMQ and Redis");
    let servers = Servers::start_private_with(settings).await?;
    eprintln!("{}", servers.versions().await?);
    Ok(servers)
}
