//! `oncely mirror stats|verify|rebuild`: completed keys in Redis.

mod rebuild;
mod stats;
mod verify;

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::output::{self, Times};
use oncely_ops::exit;

/// The schema of every verb's JSON object.
const SCHEMA: &str = "oncely.mirror/1";

#[derive(Debug, Args)]
pub(super) struct MirrorArguments {
    #[command(subcommand)]
    verb: MirrorCommand,
}

#[derive(Debug, Subcommand)]
enum MirrorCommand {
    /// Show whether Redis answers, the backlog and the last minute's throughput
    #[command(after_help = "Exit 1: there is no mirror, or Redis does not answer.")]
    Stats(stats::MirrorStatsArguments),
    /// Verify by a sample that Redis holds the expected keys; changes nothing
    #[command(
        after_help = "Takes completed keys of the last half of mirror.ttl whose records have been relayed, and looks for their tags. Missing: \
                      nothing is there, and PostgreSQL answers for such a key. Foreign: something is there that whoever has the mirror's key did \
                      not write; it counts for nothing. Making tags needs that key: the database's secret (role oncely_operator), or \
                      mirror.key. Exit 1: some are missing or foreign, or there is no mirror."
    )]
    Verify(verify::MirrorVerifyArguments),
    /// Write the completed keys of the last mirror.ttl to Redis again, after it was emptied or replaced
    #[command(
        after_help = "Writes mirror records, the newest keys first; a relay brings them to Redis. Harmless if it is repeated, and waits while \
                      10,000 records wait already. Broken off (Ctrl-C), it tells how to go on. Recorded in oncely.operator_actions. Exit 1: \
                      there is no mirror, or it was broken off. 4: the login may not (role oncely_operator)."
    )]
    Rebuild(rebuild::MirrorRebuildArguments),
}

pub(super) async fn run(file: &Path, arguments: MirrorArguments, times: Times) -> anyhow::Result<ExitCode> {
    match arguments.verb {
        MirrorCommand::Stats(arguments) => stats::run(file, arguments, times).await,
        MirrorCommand::Verify(arguments) => verify::run(file, arguments).await,
        MirrorCommand::Rebuild(arguments) => rebuild::run(file, arguments, times).await,
    }
}

/// Reports that no mirror is configured.
fn none() -> ExitCode {
    output::note(
        "there is no mirror: no [redis] url is configured, and PostgreSQL answers for all duplicates",
    );
    ExitCode::from(exit::NO)
}
