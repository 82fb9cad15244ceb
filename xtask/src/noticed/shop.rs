//! What the troubles happen to: private servers, and a worker, a relay and a console with the defaults, of a shop with two consumers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use sqlx::AssertSqlSafe;
use testbed::{Database, Process, Prometheus, Scratch, Servers, eventually, free_port};

use super::traffic::Traffic;

/// The consumers with their handlers; a queue's name is its consumer's.
const CONSUMERS: [(&str, &str); 2] = [("payments", "shop.pay"), ("emails", "shop.mail")];
/// How often Prometheus scrapes and evaluates.
pub(super) const SCRAPE: Duration = Duration::from_secs(5);

/// All of it.
pub(super) struct Shop {
    pub(super) worker: Process,
    pub(super) relay: Process,
    /// Where worker and relay listen: `host:port`.
    pub(super) listen: [String; 2],
    /// The link that the console printed.
    pub(super) link: String,
    pub(super) prometheus: Prometheus,
    pub(super) servers: Servers,
    pub(super) database: Database,
    /// The folder with the programs.
    pub(super) programs: PathBuf,
    pub(super) environment: Vec<(&'static str, String)>,
    _console: Process,
    _traffic: Traffic,
    _scratch: Scratch,
}

impl Shop {
    /// Opens it, and waits until worker and relay are ready.
    pub(super) async fn open(programs: &Path, rules: &str) -> anyhow::Result<Self> {
        let servers = Servers::start_private().await?;
        let urls = servers.urls().clone();
        let database = Database::create(&urls.postgres).await?;
        let scratch = Scratch::new("noticed")?;
        let listen = [free_port()?, free_port()?].map(|port| format!("127.0.0.1:{port}"));
        let file = scratch.path().join("oncely.toml");
        std::fs::write(&file, configuration(&listen))?;
        let environment = vec![
            ("ONCELY_CONFIG", file.display().to_string()),
            ("DATABASE_URL", database.url().to_owned()),
            ("AMQP_URL", urls.rabbitmq.clone()),
            ("REDIS_URL", urls.redis.clone()),
        ];
        let start = |name: &str, arguments: &[&str]| {
            let log = scratch.path().join(format!("{name}-{}.log", arguments.first().unwrap_or(&"")));
            let mut all: Vec<_> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let own = format!("{name}-1");
            if name != "oncely" {
                all.push(("ONCELY_WORKER__NAME", &own));
            }
            Process::start(&programs.join(name), arguments, &all, &log)
        };
        run(start("oncely", &["migrate"])?).await?;
        sqlx::raw_sql(include_str!("shop.sql")).execute(&mut database.connect().await?).await?;
        run(start("oncely", &["topology", "apply"])?).await?;
        if let Some(rabbitmq) = &servers.rabbitmq {
            rabbitmq.flush().await?;
        }
        let (worker, relay) = (start("worker", &[])?, start("relay", &[])?);
        let console = start("oncely", &["console", "--listen", "127.0.0.1:0"])?;
        let link = eventually("the console prints its link", || async {
            let output = console.output();
            output.lines().find(|line| line.starts_with("http://")).map(str::to_owned).ok_or(output)
        });
        let link = link.await?;
        let targets: Vec<&str> = listen.iter().map(String::as_str).collect();
        let prometheus = Prometheus::start_every(SCRAPE, &targets, rules).await?;
        Ok(Self {
            worker,
            relay,
            listen,
            link,
            prometheus,
            _traffic: Traffic::start(urls.rabbitmq.clone(), CONSUMERS.map(|(name, _)| name)),
            servers,
            database,
            programs: programs.to_owned(),
            environment,
            _console: console,
            _scratch: scratch,
        })
    }

    /// Runs statements.
    pub(super) async fn execute(&self, statements: &str) -> anyhow::Result<()> {
        let mut connection = self.database.connect().await?;
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&mut connection).await?;
        Ok(())
    }

    /// Runs a verb that must succeed.
    pub(super) async fn verb(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let mut command = tokio::process::Command::new(self.programs.join("oncely"));
        command.args(arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        let output = command.output().await.context("cannot run oncely")?;
        let told = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "oncely {arguments:?}: {}: {told}", output.status);
        Ok(())
    }
}

/// As a new user writes it: where to listen, and the consumers.
fn configuration([worker, relay]: &[String; 2]) -> String {
    let consumers = CONSUMERS.map(|(name, function)| {
        format!(
            "\n[[consumers]]\nname = {name:?}\nqueue = {name:?}\ntenant = {{ header = \"x-tenant-id\" }}\n\
             key = {{ property = \"message_id\" }}\nhandler = {{ function = {function:?} }}\n"
        )
    });
    format!("[worker]\nlisten = {worker:?}\n\n[relay]\nlisten = {relay:?}\n{}", consumers.concat())
}

async fn run(mut process: Process) -> anyhow::Result<()> {
    let status = process.wait_for_end(Duration::from_secs(60)).await?;
    anyhow::ensure!(status.success(), "{}: {status}: {}", process.program().display(), process.output());
    Ok(())
}
