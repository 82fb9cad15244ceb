//! `oncely status`: findings and the state of the system on one screen.

mod screen;

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::output::{self, Times, escape};
use oncely_config::Config;
use oncely_ops::exit;
use oncely_ops::status::{StatusFinding, StatusSnapshot, collect_findings, exit_code};

#[derive(Debug, Args)]
#[command(
    after_help = "Exit 0: no findings. 1: findings, and messages are processed (dead letters wait, messages are \
                  retried, a process is silent, no relay runs, Redis is unavailable). 3: PostgreSQL or RabbitMQ does \
                  not answer. 5: messages are not processed, or many are given up (a queue has no subscriber, a \
                  queue is missing, a consumer is stalled, every new message fails, events are not published, one \
                  decision in twenty is a dead letter)."
)]
pub(super) struct StatusArguments {
    /// Print one JSON object; with --also, one per line and configuration
    #[arg(long)]
    json: bool,
    /// Another configuration, of a separate database: its state follows, and the worst of all decides the exit code
    #[arg(long, value_name = "FILE")]
    also: Vec<PathBuf>,
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

/// A configuration with its file, as it was named.
struct CellConfig<'a> {
    file: &'a Path,
    config: Config,
}

/// The state of a cell's servers, its findings, and the exit code of both.
struct CellState {
    snapshot: StatusSnapshot,
    findings: Vec<StatusFinding>,
    code: u8,
}

pub(super) async fn run(file: &Path, arguments: StatusArguments, times: Times) -> crate::VerbResult {
    let mut cells: Vec<CellConfig<'_>> = Vec::new();
    for file in std::iter::once(file).chain(arguments.also.iter().map(PathBuf::as_path)) {
        let config = Config::load_read_only(file)?;
        // A variable of the environment counts for all files.
        if let Some(other) =
            cells.iter().find(|other| other.config.postgres.redacted() == config.postgres.redacted())
        {
            output::print_note(&format!(
                "{} and {} name the same database: give each its own [postgres] url or url_file, and unset DATABASE_URL",
                escape(&other.file.display().to_string()),
                escape(&file.display().to_string())
            ));
            return Ok(ExitCode::from(exit::USAGE));
        }
        cells.push(CellConfig { file, config });
    }
    let Some(seconds) = arguments.watch else {
        let states = read_states(&cells, times).await?;
        match (arguments.json, states.as_slice()) {
            (true, [state]) => output::print_json("oncely.status/2", to_json(state))?,
            (true, states) => {
                for (cell, state) in cells.iter().zip(states) {
                    let mut object = to_json(state);
                    object["configuration"] = cell.file.display().to_string().into();
                    output::print_json_line("oncely.status/2", object)?;
                }
            }
            (false, states) => output::print(&format_states(&cells, states, times))?,
        }
        return Ok(ExitCode::from(worst_code(&states)));
    };
    if !std::io::stdout().is_terminal() {
        output::print_note("--watch needs a terminal");
        return Ok(ExitCode::from(exit::USAGE));
    }
    loop {
        let states = read_states(&cells, times).await?;
        let screen = format_states(&cells, &states, times);
        // Cursor home, draw over the old screen, erase the rest of each line and of the screen: nothing flickers.
        let screen = screen.replace('\n', "\x1b[K\n");
        let mut out = std::io::stdout().lock();
        write!(out, "\x1b[H{screen}\x1b[K\n\x1b[J").and_then(|()| out.flush())?;
        drop(out);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
}

/// Reads the states of all cells at the same time.
async fn read_states(cells: &[CellConfig<'_>], times: Times) -> anyhow::Result<Vec<CellState>> {
    let reads = cells.iter().map(async |cell| {
        let snapshot = StatusSnapshot::take(&cell.config).await?;
        let findings = collect_findings(&snapshot, times);
        let code = exit_code(&snapshot, &findings);
        anyhow::Ok(CellState { snapshot, findings, code })
    });
    // Each to its end: a statement that is dropped keeps its session busy.
    futures::future::join_all(reads).await.into_iter().collect()
}

fn to_json(state: &CellState) -> Value {
    screen::to_json(&state.snapshot, &state.findings, state.code)
}

/// Formats all states, one below the other; several with their files above them.
fn format_states(cells: &[CellConfig<'_>], states: &[CellState], times: Times) -> String {
    let format_one = |(cell, state): (&CellConfig<'_>, &CellState)| {
        let screen = screen::format_status(&cell.config, &state.snapshot, &state.findings, times);
        match cells {
            [_] => screen,
            _ => format!("{}\n{screen}", escape(&cell.file.display().to_string())),
        }
    };
    cells.iter().zip(states).map(format_one).collect::<Vec<_>>().join("\n\n")
}

/// Returns the exit code of the worst state.
fn worst_code(states: &[CellState]) -> u8 {
    let by_severity = [exit::UNREACHABLE, exit::DANGER, exit::NO];
    by_severity.into_iter().find(|code| states.iter().any(|state| state.code == *code)).unwrap_or(0)
}
