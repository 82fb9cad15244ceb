//! `oncely`: the operator's command line, and the processes.

use std::process::ExitCode;

use oncely_cli as cli;
use oncely_ops::exit;

fn main() -> ExitCode {
    cli::complete();
    cli::run(cli::parse()).unwrap_or_else(|error| exit::report_error(&error))
}
