//! `relay`: `oncely relay` as a program of its own.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use oncely::config::DEFAULT_FILE;
use oncely_cli as cli;
use oncely_ops::exit;

/// Publish events to RabbitMQ, mirror completed keys to Redis, collect old rows, create audit partitions
#[derive(Debug, Parser)]
#[command(
    name = "relay",
    version,
    after_help = "Several relays may run. Stops on SIGTERM or Ctrl-C and exits 0. The same as `oncely relay`."
)]
struct RelayArguments {
    /// The configuration file
    #[arg(long, env = "ONCELY_CONFIG", default_value = DEFAULT_FILE)]
    config: PathBuf,
}

fn main() -> ExitCode {
    cli::relay::run(&RelayArguments::parse().config).unwrap_or_else(|error| exit::report_error(&error))
}
