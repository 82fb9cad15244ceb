//! `cargo xtask mutants`: plants one bug at a time and lets the judge find it; then runs the same script without the bug, which
//! must be judged clean. A green fault run means as much as this table does. What the judge does not look at (the HTTP door, the lease
//! stores) is planted for the tests: each that a bug names must fail with it, and pass without.

mod charges;
mod findings;
mod patch;
mod scripts;
mod settings;
mod steps;
mod suites;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use testbed::{Arena, ArenaConfig, Servers};
use tokio::task::JoinHandle;

use crate::process;
use patch::Patch;
use scripts::{MUTANTS, Mutant};
use suites::{TESTED, Tested};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only these bugs, such as ack_before_commit
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only see that each patch of xtask/mutants still applies
    #[arg(long)]
    check: bool,
    /// Print one JSON object on the last line
    #[arg(long)]
    json: bool,
}

/// Longest wait for the end of the work: a bug that loses a message leaves it for ever.
const LIMIT: Duration = Duration::from_secs(12);
/// Without a bug all work ends.
const CLEAN_LIMIT: Duration = Duration::from_secs(60);

/// What was found, or why there was no trial.
type Outcome = Result<Vec<Finding>, String>;

/// Something that only a bug brings about.
#[derive(Debug)]
struct Finding {
    /// An invariant and how it was broken, or a test.
    name: String,
    what: String,
}

/// What became of one mutant.
struct Verdict {
    bug: &'static str,
    /// What was found with the bug.
    found: Outcome,
    /// What was found without: nothing, or the script is wrong.
    clean: Outcome,
}

impl Verdict {
    fn is_caught(&self) -> bool {
        self.word() == "caught"
    }

    fn word(&self) -> &'static str {
        match (&self.found, &self.clean) {
            (Err(_), _) | (_, Err(_)) => "NO TRIAL",
            (Ok(found), Ok(clean)) => match (found.is_empty(), clean.is_empty()) {
                (false, true) => "caught",
                (true, _) => "SURVIVED",
                (_, false) => "NOT CLEAN WITHOUT IT",
            },
        }
    }

    fn findings(&self) -> String {
        let found = self.found.as_deref().unwrap_or_default();
        let names: BTreeSet<&str> = found.iter().map(|finding| finding.name.as_str()).collect();
        names.into_iter().collect::<Vec<_>>().join(", ")
    }
}

/// Runs all mutants. Fails when one survives, when a script is not clean without its bug, or when a patch no longer applies.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let patches = patch::all()?;
    if arguments.check {
        return check(&patches);
    }
    let is_chosen = |bug: &str| arguments.only.is_empty() || arguments.only.iter().any(|name| name == bug);
    let judged: Vec<&Mutant> = MUTANTS.iter().filter(|mutant| is_chosen(mutant.bug)).collect();
    let tested: Vec<&Tested> = TESTED.iter().filter(|mutant| is_chosen(mutant.bug)).collect();
    let count = judged.len() + tested.len();
    anyhow::ensure!(count > 0, "there is no such bug");
    let started = Instant::now();
    let style = ProgressStyle::with_template("mutants {bar:30} {pos}/{len} {elapsed} {msg}");
    let bar =
        ProgressBar::new(count as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut verdicts = match judged.is_empty() {
        true => Vec::new(),
        false => judge_mutants(&patches, &judged, &bar).await?,
    };
    if !tested.is_empty() {
        verdicts.extend(suites::run(&patches, &tested, &bar).await?);
    }
    bar.finish_and_clear();
    report(&verdicts, started.elapsed(), arguments.json)
}

/// Lets the judge of the fault runs find them.
async fn judge_mutants(
    patches: &[Patch],
    chosen: &[&'static Mutant],
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Verdict>> {
    let binaries = process::build_with_failpoints()?;
    eprintln!("starting PostgreSQL, RabbitMQ and Redis");
    let first = Servers::start_private().await?;
    // One is built at a time, and meanwhile another one tried: a trial mostly waits.
    let coming = tokio::sync::Mutex::new(chosen.iter());
    let lane = async |servers: Servers| -> anyhow::Result<Vec<Verdict>> {
        let mut servers = Some(servers);
        let mut verdicts = Vec::new();
        loop {
            let mut next = coming.lock().await;
            let Some(mutant) = next.next() else { break };
            bar.set_message(mutant.bug);
            let built = build(patches, mutant.bug).await?;
            drop(next);
            let found = match built {
                Ok(planted) => {
                    let found = trial(mutant, true, &planted, &mut servers).await;
                    // Half a gigabyte each.
                    let _ = std::fs::remove_dir_all(planted);
                    found
                }
                Err(error) => Err(format!("{error:#}")),
            };
            let clean = match &found {
                // What cannot even be tried with its bug says nothing without it.
                Err(_) => Ok(Vec::new()),
                Ok(_) => trial(mutant, false, &binaries, &mut servers).await,
            };
            let verdict = Verdict { bug: mutant.bug, found, clean };
            tell(&verdict, bar);
            verdicts.push(verdict);
        }
        Ok(verdicts)
    };
    let second = async {
        match chosen.len() {
            1 => Ok(Vec::new()),
            _ => lane(Servers::start_private().await?).await,
        }
    };
    let (mut verdicts, others) = tokio::try_join!(lane(first), second)?;
    verdicts.extend(others);
    verdicts.sort_by_key(|verdict| chosen.iter().position(|mutant| mutant.bug == verdict.bug));
    Ok(verdicts)
}

fn tell(verdict: &Verdict, bar: &ProgressBar) {
    bar.suspend(|| eprintln!("{}: {} {}", verdict.bug, verdict.word(), verdict.findings()));
    bar.inc(1);
}

fn check(patches: &[Patch]) -> anyhow::Result<()> {
    let mut broken = 0;
    for patch in patches {
        match patch.check() {
            Ok(()) => eprintln!("{}: leaves out {}", patch.name, patch.care),
            Err(error) => {
                broken += 1;
                eprintln!("{error:#}");
            }
        }
    }
    anyhow::ensure!(broken == 0, "{broken} of {} patches no longer apply", patches.len());
    Ok(())
}

/// Builds the programs with a bug, on a thread of their own; returns the folder that they are in.
fn build(patches: &[Patch], name: &'static str) -> JoinHandle<anyhow::Result<PathBuf>> {
    let patch = patches.iter().find(|patch| patch.name == name).cloned();
    tokio::task::spawn_blocking(move || {
        patch.with_context(|| format!("there is no xtask/mutants/{name}.patch"))?.build()
    })
}

/// One script, from fresh tables and queues on. What goes wrong with it is its own matter: the others go on.
async fn trial(mutant: &Mutant, planted: bool, binaries: &Path, servers: &mut Option<Servers>) -> Outcome {
    let name = format!("{} ({})", mutant.bug, if planted { "planted" } else { "without" });
    match attempt(mutant, planted, &name, binaries, servers).await {
        Ok(found) => Ok(found),
        Err(error) => {
            eprintln!("{name}: {error:#}");
            Err(format!("{name}: {error:#}"))
        }
    }
}

async fn attempt(
    mutant: &Mutant,
    planted: bool,
    name: &str,
    binaries: &Path,
    servers: &mut Option<Servers>,
) -> anyhow::Result<Vec<Finding>> {
    let mut config = ArenaConfig::new(binaries.to_path_buf());
    config.workers = mutant.workers;
    config.relays = 1;
    config.neighbours = mutant.neighbours.to_vec();
    for (section, key, value) in mutant.settings {
        config = config.set(section, key, value);
    }
    config.environment.extend(mutant.failpoint.map(|at| ("FAILPOINT".to_owned(), at.to_owned())));
    let free = match servers.take() {
        Some(servers) => servers,
        // A trial that went wrong took its servers with it.
        None => Servers::start_private().await?,
    };
    let mut arena = Arena::start_on(free, config).await?;
    let violations = judge_arena(mutant, planted, &mut arena).await;
    if violations.as_ref().map_or(true, |found| !planted && !found.is_empty()) {
        eprintln!("logs of {name}: {}", arena.keep_logs()?.display());
    }
    let violations = violations?;
    *servers = arena.leave().await.ok();
    Ok(violations)
}

async fn judge_arena(mutant: &Mutant, planted: bool, arena: &mut Arena) -> anyhow::Result<Vec<Finding>> {
    scripts::play(mutant, arena).await?;
    arena.drain_within(if planted { LIMIT } else { CLEAN_LIMIT }).await?;
    let violations = arena.check().await?;
    let finding = |violation: testbed::checker::Violation| Finding {
        name: format!("{:?} {}", violation.invariant, violation.what.name()),
        what: violation.to_string(),
    };
    Ok(violations.into_iter().map(finding).collect())
}

fn report(verdicts: &[Verdict], took: Duration, json: bool) -> anyhow::Result<()> {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["PLANTED BUG", "VERDICT", "BY"]);
    for verdict in verdicts {
        table.add_row([verdict.bug.to_owned(), verdict.word().to_owned(), verdict.findings()]);
        for finding in verdict.clean.as_deref().unwrap_or_default() {
            eprintln!("{} without the bug: {}", verdict.bug, finding.what);
        }
        for error in [&verdict.found, &verdict.clean].into_iter().filter_map(|outcome| outcome.as_ref().err())
        {
            eprintln!("{error}");
        }
    }
    let caught = verdicts.iter().filter(|verdict| verdict.is_caught()).count();
    eprintln!("{table}\n{caught} of {} caught in {:.0?}", verdicts.len(), took);
    if json {
        let by: serde_json::Map<String, serde_json::Value> = verdicts
            .iter()
            .map(|verdict| {
                let said = if verdict.is_caught() { verdict.findings() } else { verdict.word().to_owned() };
                (verdict.bug.to_owned(), json!(said))
            })
            .collect();
        let object = json!({ "planted": verdicts.len(), "caught": caught, "by": by });
        use std::io::Write as _;
        writeln!(std::io::stdout(), "{object}")?;
    }
    anyhow::ensure!(caught == verdicts.len(), "a planted bug was not caught: a clean verdict proves nothing");
    Ok(())
}
