//! `oncely`: the operator's command line.

use std::process::ExitCode;

use clap::Parser;
use oncely::{cli, exit};

#[tokio::main]
async fn main() -> ExitCode {
    match cli::run(cli::Arguments::parse()).await {
        Ok(code) => code,
        Err(error) => exit::failed(&error),
    }
}
