//! `oncely leases list|release`.

mod list;
mod release;

use std::path::Path;

use clap::Subcommand;

use super::output::{Times, format_seconds};
use oncely_postgres::{HeldLease, LeaseStep};

#[derive(Debug, Subcommand)]
pub(super) enum LeasesCommand {
    /// Keys that runs hold by a lease, the oldest first within a consumer; exit 1 if nothing matches
    #[command(
        after_help = "An expired lease blocks nothing: the next copy of its message takes the key over. Steps are \
                      hidden from a login that may not read them (oncely_auditor). The next page: --after, with the \
                      printed place."
    )]
    List(list::LeaseListArguments),
    /// Release a key from the run that holds it, so that the next copy of its message runs at once
    #[command(
        after_help = "For a run that hangs, or whose host is gone for good; other runs end by themselves, or their \
                      leases expire. The run is not stopped: it can complete nothing (the trail records fenced), and \
                      its calls to other services have happened. The next run repeats a step that began as the \
                      step's rule says; a step under the rule never, or with an expired window, is given up as \
                      outcome_unknown. Exit 1: no run holds the key, or another one does meanwhile. 2: several are \
                      held: name one. 4: not confirmed, or the login lacks the role oncely_operator."
    )]
    Release(release::LeaseReleaseArguments),
}

pub(super) async fn run(file: &Path, verb: LeasesCommand, times: Times) -> crate::VerbResult {
    match verb {
        LeasesCommand::List(arguments) => list::run(file, arguments, times).await,
        LeasesCommand::Release(arguments) => release::run(file, arguments).await,
    }
}

/// Formats how long a lease lasts, or how long ago it ended.
fn format_remaining(lease: &HeldLease) -> String {
    let shown = format_seconds(lease.remaining.as_seconds_f64().abs());
    if lease.is_over { format!("over for {shown}") } else { format!("ends in {shown}") }
}

/// Formats steps as `mail done, charge started`.
fn format_steps(steps: &[LeaseStep]) -> String {
    let shown = steps.iter().map(|step| match step.round {
        0 => format!("{} {}", step.name, step.state),
        round => format!("{} {} (round {round})", step.name, step.state),
    });
    shown.collect::<Vec<_>>().join(", ")
}
