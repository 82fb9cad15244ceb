//! `worker`: consumes the queues of `oncely.toml` and runs their SQL functions.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use oncely::config::{Config, DEFAULT_FILE};
use oncely::worker::Worker;
use oncely::{exit, shutdown, telemetry};

/// Consumes RabbitMQ queues so that each message takes effect in PostgreSQL once
#[derive(Debug, Parser)]
#[command(
    name = "worker",
    version,
    after_help = "Stops on SIGTERM or Ctrl-C: finishes what has begun, then exits 0."
)]
struct Arguments {
    /// The configuration file
    #[arg(long, env = "ONCELY_CONFIG", default_value = DEFAULT_FILE)]
    config: PathBuf,
}

fn main() -> ExitCode {
    match work(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => exit::failed(&error),
    }
}

fn work(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let config = Config::load(&arguments.config)?;
    telemetry::start(&config.log);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(usize::try_from(config.worker.threads)?)
        .enable_all()
        .build()?;
    runtime.block_on(run(config))
}

async fn run(config: Config) -> anyhow::Result<ExitCode> {
    let stop = shutdown::on_signal()?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), worker = config.worker.name, "worker starts");
    let stopped = Worker::builder(config).tell_systemd().build()?.run(stop).await?;
    Ok(ExitCode::from(stopped.code()))
}
