//! `oncely mirror stats|verify|rebuild`: completed keys in Redis.

mod rebuild;
mod stats;
mod verify;

use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;

use super::output::{self, Times};
use oncely_ops::exit;

/// The schema of every verb's JSON object.
const SCHEMA: &str = "oncely.mirror/1";

#[derive(Debug, Subcommand)]
pub(super) enum MirrorCommand {
    /// Show whether Redis answers, the backlog and the last minute's throughput
    #[command(after_help = "Exit 1: there is no mirror, or Redis does not answer.")]
    Stats(stats::MirrorStatsArguments),
    /// Verify by a sample that Redis holds the expected keys; changes nothing
    #[command(
        after_help = "Samples completed keys of the last half of mirror.ttl whose records have been relayed, and \
                      looks up their tags. Missing: there is no entry, and PostgreSQL answers for such a key. \
                      Foreign: the entry was not written with the mirror's key; it is ignored. Making tags needs \
                      that key: the database's secret (role oncely_operator), or mirror.key. Exit 1: entries are \
                      missing or foreign, or there is no mirror."
    )]
    Verify(verify::MirrorVerifyArguments),
    /// Write the completed keys of the last mirror.ttl to Redis again, after it was emptied or replaced
    #[command(
        after_help = "Writes mirror records, newest keys first; a relay writes them to Redis. May be repeated; waits \
                      while 10,000 records are queued. If interrupted (Ctrl-C), it prints how to continue. Recorded \
                      in oncely.operator_actions. Exit 1: there is no mirror, or it was interrupted. 4: the login \
                      lacks the role oncely_operator."
    )]
    Rebuild(rebuild::MirrorRebuildArguments),
}

pub(super) async fn run(file: &Path, verb: MirrorCommand, times: Times) -> crate::VerbResult {
    match verb {
        MirrorCommand::Stats(arguments) => stats::run(file, arguments, times).await,
        MirrorCommand::Verify(arguments) => verify::run(file, arguments).await,
        MirrorCommand::Rebuild(arguments) => rebuild::run(file, arguments, times).await,
    }
}

/// Prints that no mirror is configured; returns the exit code.
fn report_no_mirror() -> ExitCode {
    output::print_note(
        "there is no mirror: no [redis] url is configured, and PostgreSQL answers for all duplicates",
    );
    ExitCode::from(exit::NO)
}
