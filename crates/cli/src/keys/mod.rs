//! `oncely keys list|show|seed|settle`.

mod list;
mod seed;
mod seed_file;
mod settle;
mod show;

use std::path::Path;

use clap::Subcommand;

use super::output::Times;

#[derive(Debug, Subcommand)]
pub(super) enum KeysCommand {
    /// Keys, page by page; exit 1 if nothing matches
    #[command(
        after_help = "Lists only what an index serves, so that a page costs the same in a table of any size: a \
                      tenant's keys (--tenant, with or without --consumer) by name, or a consumer's keys of one \
                      status (--consumer --status), newest first. The next page: --after, with the printed place."
    )]
    List(list::KeyListArguments),
    /// Show all facts of one key
    #[command(
        after_help = "Exit 1: the key is not known. 2: it is known for several tenants or consumers: name one. \
                      `oncely explain` shows its history."
    )]
    Show(show::KeyShowArguments),
    /// Seed keys that were processed before the consumer used Oncely, so that their copies are duplicates
    #[command(
        after_help = "May be repeated: known keys stay unchanged. Seeded keys are COMPLETED, without a payload to \
                      compare and without a mirror record (`oncely mirror rebuild` writes those), each with a row of \
                      the trail; recorded in oncely.operator_actions. A line that can't be seeded is reported with \
                      its number; the other lines are seeded. From a database: psql -c '\\copy (select …) to stdout \
                      with (format csv, header)' piped into `oncely keys seed - …`. Exit 1: lines were refused, keys \
                      are FAILED or IN_PROGRESS here, or it was interrupted. 4: the login lacks the role \
                      oncely_operator."
    )]
    Seed(seed::KeySeedArguments),
    /// Settle whether a key took effect, if only you can determine it
    #[command(
        after_help = "For a key that was given up as outcome_unknown (`oncely keys list --consumer CONSUMER --status \
                      failed`) or incomplete_claim, or that a run under a lease left open. First check where it \
                      would have taken effect. A dead letter of it stays: discard it after yes, requeue it after no. \
                      Recorded in oncely.operator_actions, and yes in the trail. Exit 1: there is nothing to settle. \
                      2: it is known for several tenants or consumers: name one. 4: not confirmed, or the login \
                      lacks the role oncely_operator."
    )]
    Settle(settle::KeySettleArguments),
}

pub(super) async fn run(file: &Path, verb: KeysCommand, times: Times) -> crate::VerbResult {
    match verb {
        KeysCommand::List(arguments) => list::run(file, arguments, times).await,
        KeysCommand::Show(arguments) => show::run(file, arguments, times).await,
        KeysCommand::Seed(arguments) => seed::run(file, arguments).await,
        KeysCommand::Settle(arguments) => settle::run(file, arguments).await,
    }
}
