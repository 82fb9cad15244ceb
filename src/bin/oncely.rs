//! `oncely`: the operator's command line.

use std::process::ExitCode;

use clap::Parser;
use oncely::{cli, exit, stack};

fn main() -> ExitCode {
    // A sweep reads dead letters, whose headers may nest deep. Before there is any other thread.
    stack::deepen();
    work()
}

#[tokio::main]
async fn work() -> ExitCode {
    match cli::run(cli::Arguments::parse()).await {
        Ok(code) => code,
        Err(error) => exit::failed(&error),
    }
}
