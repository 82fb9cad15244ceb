//! `oncely handler`: tests handlers that are SQL functions, without a broker.

mod report;
mod test;

use std::path::Path;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(super) enum HandlerCommand {
    /// Run a consumer's function on the messages of a file, and roll everything back
    Test(test::HandlerTestArguments),
}

pub(super) async fn run(file: &Path, verb: HandlerCommand) -> crate::VerbResult {
    match verb {
        HandlerCommand::Test(arguments) => test::run(file, arguments).await,
    }
}
