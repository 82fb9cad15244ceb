//! `oncely`: the operator's command line, and the processes.

use std::process::ExitCode;

use oncely::{cli, exit};

fn main() -> ExitCode {
    cli::complete();
    cli::run(cli::parse()).unwrap_or_else(|error| exit::failed(&error))
}
