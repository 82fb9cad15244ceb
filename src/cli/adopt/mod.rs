//! `oncely adopt check|report`: an existing queue and its consumer, on their way to Oncely.

mod check;
mod report;

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::output::Times;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Can the queue that is there be taken over, and what is to be done before? Changes nothing
    #[command(
        after_help = "Asks RabbitMQ, and its HTTP API where rabbitmq.management is set: type, arguments, policies and bindings are told by that \
                      alone. `oncely check` and the doctor look at the rest. Exit 1: something must be done before a worker starts."
    )]
    Check(check::Arguments),
    /// What a consumer in mode = "observe" has seen: is the key right, how many doubles would have been stopped?
    #[command(
        after_help = "Reads the trail. Verdict: right; unproven (no copy came yet); conflicting (a known key with another payload); incomplete \
                      (messages without an identity). Exit 1: conflicting, incomplete, or nothing was observed."
    )]
    Report(report::Arguments),
}

pub(super) async fn run(file: &Path, arguments: Arguments, times: Times) -> anyhow::Result<ExitCode> {
    match arguments.verb {
        Verb::Check(arguments) => check::run(file, arguments, times).await,
        Verb::Report(arguments) => report::run(file, arguments, times).await,
    }
}
