//! `worker`: consumes the queues of `oncely.toml` and runs their SQL functions.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use oncely::config::{Config, DEFAULT_FILE};
use oncely::worker::Worker;
use oncely::{exit, shutdown, stack, telemetry, watchdog};

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
    // Before there is any other thread.
    stack::deepen();
    work()
}

#[tokio::main]
async fn work() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(code) => code,
        Err(error) => exit::failed(&error),
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let config = Config::load(&arguments.config)?;
    telemetry::start(&config.log);
    let stop = shutdown::on_signal()?;
    watchdog::start(config.worker.watchdog)?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), worker = config.worker.name, "worker starts");
    let stopped = Worker::builder(config).build()?.run(stop).await?;
    Ok(ExitCode::from(stopped.code()))
}
