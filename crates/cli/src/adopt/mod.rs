//! `oncely adopt check|report`: moves an existing queue and its consumer to Oncely.

mod check;
mod report;

use std::path::Path;

use clap::Subcommand;

use super::output::Times;

#[derive(Debug, Subcommand)]
pub(super) enum AdoptCommand {
    /// Check whether an existing queue can be taken over, and list the steps before it; changes nothing
    #[command(
        after_help = "Queries RabbitMQ, and its HTTP API if rabbitmq.management is set: only the API has type, \
                      arguments, policies and bindings. `oncely check` and `oncely doctor` check the rest. Exit 1: \
                      something must be done before a worker starts."
    )]
    Check(check::AdoptCheckArguments),
    /// Report the results of a consumer in mode = "observe": whether the key is right, and how many duplicates would have been stopped
    #[command(
        after_help = "Reads the trail. Verdict: right; unproven (no copy came yet); conflicting (a known key with another payload); incomplete \
                      (messages without an identity). Exit 1: conflicting, incomplete, or nothing was observed."
    )]
    Report(report::AdoptReportArguments),
}

pub(super) async fn run(file: &Path, verb: AdoptCommand, times: Times) -> crate::VerbResult {
    match verb {
        AdoptCommand::Check(arguments) => check::run(file, arguments, times).await,
        AdoptCommand::Report(arguments) => report::run(file, arguments, times).await,
    }
}
