//! `relay`: publishes events, mirrors what committed to Redis, and keeps the tables.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use oncely::config::{Config, DEFAULT_FILE};
use oncely::relay::Relay;
use oncely::{exit, shutdown, telemetry};

/// Publishes events to RabbitMQ, mirrors completed keys to Redis, collects old rows, makes audit partitions
#[derive(Debug, Parser)]
#[command(
    name = "relay",
    version,
    after_help = "Several relays may run. Stops on SIGTERM or Ctrl-C and exits 0."
)]
struct Arguments {
    /// The configuration file
    #[arg(long, env = "ONCELY_CONFIG", default_value = DEFAULT_FILE)]
    config: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(code) => code,
        Err(error) => exit::failed(&error),
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let config = Config::load(&arguments.config)?;
    telemetry::start(&config.log);
    let stop = shutdown::on_signal()?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "relay starts");
    let stopped = Relay::new(config).tell_systemd().run(stop).await?;
    Ok(ExitCode::from(stopped.code()))
}
