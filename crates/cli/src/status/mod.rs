//! `oncely status`: findings and the state of the system on one screen.

mod screen;

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::output::{self, Times};
use oncely_config::Config;
use oncely_ops::exit;
use oncely_ops::status::{StatusSnapshot, collect_findings, exit_code};

#[derive(Debug, Args)]
#[command(
    after_help = "Exit 0: no findings. 1: findings, and messages are processed (dead letters wait, messages are \
                  retried, a process is silent, no relay runs, Redis is unavailable). 3: PostgreSQL or RabbitMQ does \
                  not answer. 5: messages are not processed, or many are given up (a queue has no subscriber, a \
                  queue is missing, a consumer is stalled, every new message fails, events are not published, one \
                  decision in twenty is a dead letter)."
)]
pub(super) struct StatusArguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Redraw every SECONDS (2) until Ctrl-C
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "2",
        value_parser = clap::value_parser!(u64).range(1..=3_600),
        conflicts_with = "json"
    )]
    watch: Option<u64>,
}

pub(super) async fn run(file: &Path, arguments: StatusArguments, times: Times) -> crate::VerbResult {
    let config = Config::load_read_only(file)?;
    let Some(seconds) = arguments.watch else {
        let snapshot = StatusSnapshot::take(&config).await?;
        let findings = collect_findings(&snapshot, times);
        let code = exit_code(&snapshot, &findings);
        if arguments.json {
            output::print_json("oncely.status/2", screen::to_json(&snapshot, &findings, code))?;
        } else {
            output::print(&screen::format_status(&config, &snapshot, &findings, times))?;
        }
        return Ok(ExitCode::from(code));
    };
    if !std::io::stdout().is_terminal() {
        output::print_note("--watch needs a terminal");
        return Ok(ExitCode::from(exit::USAGE));
    }
    loop {
        let snapshot = StatusSnapshot::take(&config).await?;
        let findings = collect_findings(&snapshot, times);
        let screen = screen::format_status(&config, &snapshot, &findings, times);
        // Cursor home, draw over the old screen, erase the rest of each line and of the screen: nothing flickers.
        let screen = screen.replace('\n', "\x1b[K\n");
        let mut out = std::io::stdout().lock();
        write!(out, "\x1b[H{screen}\x1b[K\n\x1b[J").and_then(|()| out.flush())?;
        drop(out);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
}
