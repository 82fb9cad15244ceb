//! The servers, the database and the processes of the demo.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Context as _;
use sqlx::Row as _;
use testbed::{Broker, Database, Ledger, Process, Scratch, Servers};

use crate::{process, serve};

/// `QUEUE` stands for the queue's name: the demo has queues of its own, whoever's broker it is.
const CONFIGURATION: &str = r#"# The demo's configuration.
[audit]
duplicates = true      # list duplicates too, so that they can be counted by who knew them

[[consumers]]
name = "payments"
queue = "QUEUE"
tenant = { header = "x-tenant-id" }
key = { property = "message_id" }
handler = { function = "shop.capture_payments", batch = true }
"#;

/// Everything that the demo plays with.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) servers: Servers,
    pub(crate) database: Database,
    pub(crate) workers: Vec<Process>,
    pub(crate) queue: String,
    relay: Option<Process>,
    scratch: Option<Scratch>,
    configuration: PathBuf,
    binaries: PathBuf,
}

impl Stage {
    /// Builds the programs, starts servers and processes.
    pub(crate) async fn set(tenants: u32) -> anyhow::Result<Self> {
        let binaries = process::build_binaries()?;
        eprintln!("starting PostgreSQL, RabbitMQ and Redis");
        let servers = Servers::start().await?;
        eprintln!("{}", servers.versions().await?);
        let database = Database::create(&servers.urls().postgres).await?;
        let scratch = Scratch::new("demo")?;
        let configuration = scratch.path().join("oncely.toml");
        let queue = format!("oncely-demo-{}", uuid::Uuid::new_v4().simple());
        std::fs::write(&configuration, CONFIGURATION.replace("QUEUE", &queue))?;
        let mut stage = Self {
            servers,
            database,
            workers: Vec::new(),
            queue,
            relay: None,
            scratch: Some(scratch),
            configuration,
            binaries,
        };
        stage.oncely(&["migrate"])?;
        Ledger::create(&mut stage.database.connect().await?).await?;
        stage.oncely(&["topology", "apply"])?;
        eprintln!("starting two workers and a relay; {tenants} tenants send payments");
        for name in ["worker-1", "worker-2"] {
            let process = stage.start("worker", name)?;
            stage.workers.push(process);
        }
        stage.relay = Some(stage.start("relay", "relay")?);
        Ok(stage)
    }

    pub(crate) fn amqp_url(&self) -> String {
        self.servers.urls().rabbitmq.clone()
    }

    fn environment(&self) -> [(&str, &str); 4] {
        let urls = self.servers.urls();
        [
            ("ONCELY_CONFIG", self.configuration.to_str().unwrap_or_default()),
            ("DATABASE_URL", self.database.url()),
            ("AMQP_URL", &urls.rabbitmq),
            ("REDIS_URL", &urls.redis),
        ]
    }

    fn start(&self, program: &str, name: &str) -> anyhow::Result<Process> {
        let log = self.configuration.with_file_name(format!("{name}.log"));
        let mut environment = self.environment().to_vec();
        environment.push(("ONCELY_WORKER__NAME", name));
        Process::start(&self.binaries.join(program), &[], &environment, &log)
    }

    fn oncely(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let output = std::process::Command::new(self.binaries.join("oncely"))
            .args(arguments)
            .envs(self.environment())
            .output()
            .context("cannot run oncely")?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::ensure!(output.status.success(), "oncely {}: {text}", arguments.join(" "));
        Ok(())
    }

    /// Is no message waiting and no mirror record left?
    pub(crate) async fn at_rest(&self) -> anyhow::Result<bool> {
        let ready = Broker::connect(&self.amqp_url()).await?.ready(&self.queue).await?;
        let row = sqlx::query("select count(*) from oncely.mirror_queue")
            .fetch_one(&mut self.database.connect().await?)
            .await?;
        Ok(ready == 0 && row.get::<i64, _>(0) == 0)
    }

    /// Sends SIGTERM to all processes; returns how each ended.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<Vec<(String, ExitStatus)>> {
        let mut ends = Vec::new();
        for (number, worker) in self.workers.iter_mut().enumerate() {
            ends.push((format!("worker {}", number + 1), worker.terminate(Duration::from_secs(40)).await?));
        }
        if let Some(relay) = &mut self.relay {
            ends.push(("relay".to_owned(), relay.terminate(Duration::from_secs(40)).await?));
        }
        Ok(ends)
    }

    /// Keeps the servers up until Ctrl-C.
    pub(crate) async fn hold(&self) -> anyhow::Result<()> {
        {
            let mut out = std::io::stdout().lock();
            writeln!(out, "# the demo's database:\nexport ONCELY_CONFIG={}", self.configuration.display())?;
        }
        serve::print_urls(&self.servers, self.database.url())?;
        eprintln!("servers are up; Ctrl-C stops them and removes their data");
        tokio::signal::ctrl_c().await?;
        Ok(())
    }

    /// Removes the queues, the database and, if all went well, the logs.
    pub(crate) async fn clear(&mut self, good: bool) -> anyhow::Result<()> {
        self.workers.clear();
        self.relay = None;
        let broker = Broker::connect(&self.amqp_url()).await?;
        broker.delete_topology(&self.queue).await?;
        if good {
            self.database.clone().drop_now().await?;
            return Ok(());
        }
        if let Some(scratch) = self.scratch.take() {
            let kept = std::env::temp_dir().join(format!("oncely-demo-{}", std::process::id()));
            std::fs::rename(scratch.path(), &kept)?;
            eprintln!("logs: {}", kept.display());
        }
        Ok(())
    }
}
