//! `cargo xtask mutants`: plants one bug at a time and lets the judge find it; then runs the same script without the bug, which
//! must be judged clean. A green fault run means as much as this table does.

mod scripts;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use testbed::checker::Violation;
use testbed::{Arena, ArenaConfig, Servers};

use crate::process;
use scripts::{MUTANTS, Mutant};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only these bugs, such as ack_before_commit
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Print one JSON object on the last line
    #[arg(long)]
    json: bool,
}

/// Longest wait for the end of the work: a bug that loses a message leaves it for ever.
const LIMIT: Duration = Duration::from_secs(12);
/// Without a bug all work ends.
const CLEAN_LIMIT: Duration = Duration::from_secs(60);

/// What became of one mutant.
struct Verdict {
    bug: &'static str,
    /// What the judge found with the bug.
    found: Vec<Violation>,
    /// What it found without: nothing, or the script is wrong.
    clean: Vec<Violation>,
}

impl Verdict {
    fn is_caught(&self) -> bool {
        !self.found.is_empty() && self.clean.is_empty()
    }

    fn invariants(&self) -> String {
        let names: BTreeSet<String> =
            self.found.iter().map(|v| format!("{:?} {}", v.invariant, v.what.name())).collect();
        names.into_iter().collect::<Vec<_>>().join(", ")
    }
}

/// Runs all mutants. Fails when one survives, or when a script is not clean without its bug.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let binaries = process::build_planted()?;
    let chosen: Vec<&Mutant> = MUTANTS
        .iter()
        .filter(|mutant| arguments.only.is_empty() || arguments.only.iter().any(|name| name == mutant.bug))
        .collect();
    anyhow::ensure!(!chosen.is_empty(), "there is no such bug");
    eprintln!("starting PostgreSQL, RabbitMQ and Redis");
    let mut servers = Servers::start_private().await?;
    let started = Instant::now();
    let style = ProgressStyle::with_template("mutants {bar:30} {pos}/{len} {elapsed} {msg}");
    let bar = ProgressBar::new(chosen.len() as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut verdicts = Vec::new();
    for mutant in chosen {
        bar.set_message(mutant.bug);
        let (found, left) = trial(mutant, Some(mutant.bug), &binaries, servers).await?;
        let (clean, left) = trial(mutant, None, &binaries, left).await?;
        servers = left;
        verdicts.push(Verdict { bug: mutant.bug, found, clean });
        bar.inc(1);
    }
    bar.finish_and_clear();
    drop(servers);
    report(&verdicts, started.elapsed(), arguments.json)
}

/// One script, from fresh tables and queues on.
async fn trial(
    mutant: &Mutant,
    bug: Option<&str>,
    binaries: &Path,
    servers: Servers,
) -> anyhow::Result<(Vec<Violation>, Servers)> {
    let mut config = ArenaConfig::new(binaries.to_path_buf());
    config.workers = mutant.workers;
    config.relays = 1;
    for (key, value) in mutant.consumer {
        config = config.set("consumer", key, value);
    }
    config.environment.extend(bug.map(|bug| ("PLANT".to_owned(), bug.to_owned())));
    config.environment.extend(mutant.failpoint.map(|at| ("FAILPOINT".to_owned(), at.to_owned())));
    let mut arena = Arena::start_on(servers, config).await?;
    let name = format!("{} ({})", mutant.bug, bug.map_or("without", |_| "planted"));
    if let Err(error) = scripts::play(mutant, &mut arena).await {
        eprintln!("logs of {name}: {}", arena.keep_logs()?.display());
        return Err(error.context(name));
    }
    arena.drain_within(bug.map_or(CLEAN_LIMIT, |_| LIMIT)).await.with_context(|| name.clone())?;
    let violations = arena.check().await?;
    if bug.is_none() && !violations.is_empty() {
        eprintln!("logs of {name}: {}", arena.keep_logs()?.display());
    }
    Ok((violations, arena.leave().await?))
}

fn report(verdicts: &[Verdict], took: Duration, json: bool) -> anyhow::Result<()> {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["PLANTED BUG", "VERDICT", "INVARIANTS"]);
    for verdict in verdicts {
        let word = match (verdict.found.is_empty(), verdict.clean.is_empty()) {
            (false, true) => "caught",
            (true, _) => "SURVIVED",
            (_, false) => "NOT CLEAN WITHOUT IT",
        };
        table.add_row([verdict.bug.to_owned(), word.to_owned(), verdict.invariants()]);
        for violation in &verdict.clean {
            eprintln!("{} without the bug: {violation}", verdict.bug);
        }
    }
    let caught = verdicts.iter().filter(|verdict| verdict.is_caught()).count();
    eprintln!("{table}\n{caught} of {} caught in {:.0?}", verdicts.len(), took);
    if json {
        let by: serde_json::Map<String, serde_json::Value> =
            verdicts.iter().map(|verdict| (verdict.bug.to_owned(), json!(verdict.invariants()))).collect();
        let object = json!({ "planted": verdicts.len(), "caught": caught, "by": by });
        use std::io::Write as _;
        writeln!(std::io::stdout(), "{object}")?;
    }
    anyhow::ensure!(caught == verdicts.len(), "a planted bug was not caught: a clean verdict proves nothing");
    Ok(())
}
