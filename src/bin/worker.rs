//! `worker`: `oncely worker` as a program of its own.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use oncely::config::DEFAULT_FILE;
use oncely_cli as cli;
use oncely_ops::exit;

/// Consume RabbitMQ queues so that each message takes effect in PostgreSQL once
#[derive(Debug, Parser)]
#[command(
    name = "worker",
    version,
    after_help = "Stops on SIGTERM or Ctrl-C: finishes work in progress, then exits 0. The same as `oncely worker`."
)]
struct WorkerArguments {
    /// The configuration file
    #[arg(long, env = "ONCELY_CONFIG", default_value = DEFAULT_FILE)]
    config: PathBuf,
}

fn main() -> ExitCode {
    cli::worker::run(&WorkerArguments::parse().config).unwrap_or_else(|error| exit::report_error(&error))
}
