//! `cargo xtask cluster`: several hosts of each server, lost one after the other under load: nodes of RabbitMQ with quorum queues, PostgreSQL's
//! primary with a standby, Redis's master with Sentinels or in a cluster. No process is restarted or configured anew; then the judge.

mod loss;
mod report;
mod watch;

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use testbed::{Arena, ArenaConfig, Cluster};

use crate::faults::Traffic;
use crate::process;
use crate::servers::Choice;
use loss::Loss;
use report::{Report, Row};
use watch::Watch;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    servers: Choice,
    /// Messages a second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Longest pause of all work that is tolerated, in seconds
    #[arg(long, default_value_t = 10.0)]
    pause: f64,
    /// Only these losses
    #[arg(long, value_delimiter = ',')]
    only: Vec<Loss>,
    /// The same seed gives the same messages
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Redis is a cluster of three masters, instead of one master with Sentinels
    #[arg(long)]
    redis_cluster: bool,
    /// Print one JSON object on the last line
    #[arg(long)]
    json: bool,
}

/// Load before something is lost, and after it is whole again.
const AROUND: Duration = Duration::from_secs(4);
const TICK: Duration = Duration::from_millis(50);

/// What a trial's arena has shorter than the product: here its own defaults count.
const PATIENCE: [(&str, &str); 5] = [
    ("postgres", "connect_timeout"),
    ("postgres", "statement_timeout"),
    ("postgres", "lock_timeout"),
    ("rabbitmq", "heartbeat"),
    ("rabbitmq", "timeout"),
];

/// Runs the trial. Fails where something was lost or doubled, a process ended, or a pause was too long.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    arguments.servers.apply()?;
    let programs = process::build_binaries()?;
    let redis = match arguments.redis_cluster {
        true => "a Redis Cluster of three masters and their replicas",
        false => "two Redis servers and three Sentinels",
    };
    eprintln!("starting three nodes of RabbitMQ, a primary and a standby of PostgreSQL, {redis}");
    let mut cluster = Cluster::start(arguments.redis_cluster).await?;
    let mut config = ArenaConfig::new(programs);
    config = PATIENCE.iter().fold(config, |config, (section, key)| config.set(section, key, ""));
    config.workers = 2;
    config.relays = 1;
    config.hosts = Some(cluster.hosts());
    let mut arena = Arena::start_on(cluster.servers(), config).await?;
    eprintln!("{}; two workers and a relay", arena.versions().await?);
    arena.emit(arguments.seed)?;
    let mut trial = Trial {
        rate: f64::from(arguments.rate),
        traffic: Traffic::new(arguments.seed),
        watch: Watch::start(arena.environment()[1].1.clone()),
        rows: Vec::new(),
    };
    let losses = if arguments.only.is_empty() { Loss::ALL.to_vec() } else { arguments.only.clone() };
    let done = async {
        for loss in losses {
            trial.lose(&mut arena, &mut cluster, loss).await.with_context(|| loss.name())?;
        }
        arena.drain().await.context("draining")
    };
    if let Err(error) = done.await {
        eprintln!("logs: {}", arena.keep_logs()?.display());
        return Err(error);
    }
    let held_back = cluster.held_back(arena.queue()).await?;
    let report = Report::collect(&mut arena, trial.rows, held_back, arguments.pause).await?;
    report.print(arguments.json)?;
    if !report.is_good() {
        eprintln!("logs: {}", arena.keep_logs()?.display());
    }
    anyhow::ensure!(report.is_good(), "this is a bug; the seed is {}", arguments.seed);
    Ok(())
}

struct Trial {
    rate: f64,
    traffic: Traffic,
    watch: Watch,
    rows: Vec<Row>,
}

impl Trial {
    /// Loses something under load, and waits until all is done that was sent.
    async fn lose(&mut self, arena: &mut Arena, cluster: &mut Cluster, loss: Loss) -> anyhow::Result<()> {
        eprintln!("{}", loss.name());
        // Of an epoch that a failover ends nothing would be explained.
        let redis = arena.urls().redis.clone();
        let queue = arena.queue().to_owned();
        let watch = self.watch.clone();
        let losing = async {
            tokio::time::sleep(AROUND).await;
            watch.begin();
            loss.happen(cluster, &queue).await
        };
        self.run_under_load(arena, losing).await?;
        let pause = self.watch.longest();
        arena.begin_window();
        let even = arena.wait_until_settled(loss.name()).await?;
        if loss != Loss::PrimaryKilled {
            arena.sample_mirror_at(&redis).await.context("looking at the mirror")?;
        }
        self.rows.push(Row { loss, pause, even });
        Ok(())
    }

    async fn run_under_load(
        &mut self,
        arena: &mut Arena,
        losing: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let mut losing = pin!(losing);
        let (began, mut published) = (Instant::now(), 0);
        let mut whole: Option<Instant> = None;
        let mut ticks = tokio::time::interval(TICK);
        while whole.is_none_or(|since| since.elapsed() < AROUND) {
            tokio::select! {
                done = &mut losing, if whole.is_none() => {
                    done?;
                    whole = Some(Instant::now());
                }
                _ = ticks.tick() => {
                    let due = (began.elapsed().as_secs_f64() * self.rate) as usize;
                    arena.publish(self.traffic.take(due - published));
                    published = due;
                    arena.supervise()?;
                }
            }
        }
        Ok(())
    }
}
