//! `cargo xtask bench`: against the usual way, in the same run, on private servers that lose nothing. What is fast and wrong
//! fails.

mod case;
mod job;
mod meter;
mod outcome;
mod report;
mod round;
mod run;
mod site;
mod stage;
mod stats;
mod throughput;
mod verify;

use std::path::PathBuf;

use clap::Args;

use case::CASES;
use outcome::Outcome;
use round::{Rounds, bar};
use stage::Stage;

#[derive(Debug, Args)]
#[command(after_help = help())]
pub(crate) struct Arguments {
    /// Only these cases, such as e2e_classic_full,wal_per_message
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// How often each case and its baseline take turns; medians of the rounds count
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Messages in a run of ours; a run of the baseline gets a tenth of them
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    messages: u64,
    /// Take worker, relay and oncely from this folder instead of building them
    #[arg(long)]
    binaries: Option<PathBuf>,
    /// Print one JSON object a line for each case
    #[arg(long)]
    json: bool,
    /// Say on stderr which processes each run measures (for a profiler), and what it found
    #[arg(long)]
    pids: bool,
}

fn help() -> String {
    let mut text = "Cases (ratio to reach):\n".to_owned();
    for case in CASES {
        let target = match case.target {
            case::Target::AtLeast(value) => format!("at least {value}"),
            case::Target::AtMost(value) => format!("at most {value}"),
            case::Target::None => "told only".to_owned(),
        };
        text.push_str(&format!("  {:<18} {} ({target})\n", case.name, case.what));
    }
    text
}

/// Runs the cases. Fails where a result is wrong; a target that is missed is only shown.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    for name in &arguments.only {
        anyhow::ensure!(case::find(name).is_some(), "there is no case {name}; see cargo xtask bench --help");
    }
    let wanted = |names: &[&str]| {
        arguments.only.is_empty() || arguments.only.iter().any(|only| names.contains(&only.as_str()))
    };
    let stage = Stage::set(arguments.binaries.as_deref(), arguments.pids).await?;
    let rounds = Rounds { stage: &stage, rounds: arguments.rounds, messages: arguments.messages, bar: bar() };
    let mut outcomes: Vec<Outcome> = Vec::new();
    if wanted(&["e2e_classic_full", "cpu_per_message", "wal_per_message", "mirror_drain"]) {
        outcomes.extend(throughput::classic(&rounds).await?);
    }
    if wanted(&["e2e_quorum_full"]) {
        outcomes.extend(throughput::quorum(&rounds).await?);
    }
    if wanted(&["e2e_per_message_sql"]) {
        outcomes.extend(throughput::per_message(&rounds).await?);
    }
    if wanted(&["e2e_rust_handler"]) {
        outcomes.extend(throughput::rust(&rounds).await?);
    }
    if wanted(&["poison_1pct"]) {
        outcomes.extend(throughput::poison(&rounds).await?);
    }
    if wanted(&["workers_2"]) {
        outcomes.extend(throughput::workers(&rounds, 2).await?);
    }
    if wanted(&["workers_4"]) {
        outcomes.extend(throughput::workers(&rounds, 4).await?);
    }
    rounds.bar.finish_and_clear();
    outcomes.retain(|outcome| wanted(&[outcome.case.name]));
    if arguments.json {
        eprintln!("{}", report::table(&outcomes));
        report::print_json(&outcomes)
    } else {
        report::print(&outcomes)
    }
}
