//! `worker`: `oncely worker` as a program of its own.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use oncely::config::DEFAULT_FILE;
use oncely::{cli, exit};

/// Consumes RabbitMQ queues so that each message takes effect in PostgreSQL once
#[derive(Debug, Parser)]
#[command(
    name = "worker",
    version,
    after_help = "Stops on SIGTERM or Ctrl-C: finishes what has begun, then exits 0. The same as `oncely worker`."
)]
struct Arguments {
    /// The configuration file
    #[arg(long, env = "ONCELY_CONFIG", default_value = DEFAULT_FILE)]
    config: PathBuf,
}

fn main() -> ExitCode {
    cli::worker::run(&Arguments::parse().config).unwrap_or_else(|error| exit::failed(&error))
}
