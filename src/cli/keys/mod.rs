//! `oncely keys list|show|seed|settle`.

mod lines;
mod list;
mod seed;
mod settle;
mod show;

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
    /// Keys, page by page; exit 1 where there is none
    #[command(
        after_help = "Only what an index serves, so that a page costs the same in a table of any size: a tenant's keys (--tenant, with or \
                      without --consumer) in the order of their names, or a consumer's of one status (--consumer --status), the newest first. \
                      The next page: --after, as it was told."
    )]
    List(list::Arguments),
    /// All facts of one key
    #[command(
        after_help = "Exit 1 where nothing is known, 2 where it is known for several tenants or consumers: name one. \
                            `oncely explain` shows all that happened to it."
    )]
    Show(show::Arguments),
    /// Make keys known that were processed before the consumer had Oncely, so that their copies are duplicates
    #[command(
        after_help = "Run it again whenever you like: what is known stays as it is. Keys are COMPLETED then, without a payload to compare and \
                      without a mirror record (`oncely mirror rebuild` writes those), each with a row of the trail; recorded in \
                      oncely.operator_actions. A line that can't be seeded is told with its number, and keeps no other from it. From a \
                      database: psql -c '\\copy (select …) to stdout with (format csv, header)' piped into `oncely keys seed - …`. Exit 1: \
                      lines were refused, keys are FAILED or IN_PROGRESS here, or it was broken off. 4: the login may not (role oncely_operator)."
    )]
    Seed(seed::Arguments),
    /// Say of a key whether it took effect, where nobody but you can know
    #[command(
        after_help = "For a key that was given up as outcome_unknown (`oncely keys list --consumer CONSUMER --status failed`) or incomplete_claim, or that                       a run under a lease left open. Look first where it would have taken effect. A dead letter of it stays: discard it after                       yes, requeue it after no. Recorded in oncely.operator_actions, and yes in the trail. Exit 1: there is nothing to settle. 2: it is                       known for several tenants or consumers: name one. 4: nobody agreed, or the login may not (role oncely_operator)."
    )]
    Settle(settle::Arguments),
}

pub(super) async fn run(file: &Path, arguments: Arguments, times: Times) -> anyhow::Result<ExitCode> {
    match arguments.verb {
        Verb::List(arguments) => list::run(file, arguments, times).await,
        Verb::Show(arguments) => show::run(file, arguments, times).await,
        Verb::Seed(arguments) => seed::run(file, arguments).await,
        Verb::Settle(arguments) => settle::run(file, arguments).await,
    }
}
