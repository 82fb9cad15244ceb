//! `oncely top`: shows the consumers live.

mod frame;
mod keys;
mod live;
mod numbers;
mod servers;
mod table;
mod terminal;
#[cfg(test)]
mod tests;
mod view;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use self::frame::{DEFAULT_WIDTH, ScreenContent, to_json, to_text};
use self::servers::{ServerAnswers, ServerConnections};
use self::view::ScreenState;
use super::output::{self, Times};
use oncely_config::Config;
use oncely_ops::exit;

#[derive(Debug, Args)]
#[command(
    after_help = "Rates and durations are of the last whole minute, as processes report it; states are five seconds old at most. Keys: q \
                  quits, up and down select a consumer, p pauses or resumes it, s sorts, ? explains the columns. Where the terminal is \
                  narrow, columns are left out from the right. Exit 3: PostgreSQL does not answer (with --once)."
)]
pub(super) struct TopArguments {
    /// Print one frame and exit
    #[arg(long)]
    once: bool,
    /// Print one line of JSON per query; with --once only one
    #[arg(long)]
    json: bool,
    /// Seconds between two queries
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    every: u64,
}

/// The schema of each line.
const SCHEMA: &str = "oncely.top/1";

pub(super) async fn run(file: &Path, arguments: TopArguments, times: Times) -> crate::VerbResult {
    let config = Config::load_read_only(file)?;
    let every = Duration::from_secs(arguments.every);
    match (arguments.once, arguments.json) {
        (false, false) => live::run(config, every, times).await,
        (true, json) => {
            let answers = ServerConnections::new(config.clone()).query().await?;
            let code = match &answers.snapshot.postgres {
                Ok(_) => 0,
                Err(failure) if failure.is_away => exit::UNREACHABLE,
                Err(_) => exit::NO,
            };
            if json {
                output::print_json_line(SCHEMA, to_json(&answers, &config))?;
            } else {
                let width = terminal::width().unwrap_or(DEFAULT_WIDTH);
                let mut screen = ScreenState::new(&config, times);
                screen.update(answers);
                output::print(&to_text(&ScreenContent::from_screen(&screen, width).into_lines()))?;
            }
            Ok(ExitCode::from(code))
        }
        (false, true) => print_json_stream(config, every).await,
    }
}

/// Prints a line for each query, until it is stopped or stdout is closed.
async fn print_json_stream(config: Config, every: Duration) -> crate::VerbResult {
    let stop = oncely_process::shutdown::on_signal()?;
    tokio::pin!(stop);
    let mut servers = ServerConnections::new(config.clone());
    loop {
        let answers: ServerAnswers = servers.query().await?;
        if !output::print_json_line(SCHEMA, to_json(&answers, &config))? {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::select! {
            () = &mut stop => return Ok(ExitCode::SUCCESS),
            () = tokio::time::sleep(every) => {}
        }
    }
}
