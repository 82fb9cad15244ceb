//! `oncely`: the operator's command line.

use std::process::ExitCode;

use oncely::{cli, exit};

#[tokio::main]
async fn main() -> ExitCode {
    cli::complete();
    match cli::run(cli::parse()).await {
        Ok(code) => code,
        Err(error) => exit::failed(&error),
    }
}
