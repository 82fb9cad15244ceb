//! `oncely handler`: tests handlers that are SQL functions, without a broker.

mod report;
mod test;

use std::path::Path;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(super) struct HandlerArguments {
    #[command(subcommand)]
    verb: HandlerCommand,
}

#[derive(Debug, Subcommand)]
enum HandlerCommand {
    /// Run a consumer's function on the messages of a file, and roll everything back
    Test(test::HandlerTestArguments),
}

pub(super) async fn run(file: &Path, arguments: HandlerArguments) -> crate::VerbResult {
    match arguments.verb {
        HandlerCommand::Test(arguments) => test::run(file, arguments).await,
    }
}
