//! `oncely keys list|show`.

mod list;
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
}

pub(super) async fn run(file: &Path, arguments: Arguments, times: Times) -> anyhow::Result<ExitCode> {
    match arguments.verb {
        Verb::List(arguments) => list::run(file, arguments, times).await,
        Verb::Show(arguments) => show::run(file, arguments, times).await,
    }
}
