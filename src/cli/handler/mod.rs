//! `oncely handler`: handlers that are SQL functions, without a broker.

mod report;
mod test;

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a consumer's function on the messages of a file, and take everything back
    Test(test::Arguments),
}

pub(super) async fn run(file: &Path, arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.verb {
        Verb::Test(arguments) => test::run(file, arguments).await,
    }
}
