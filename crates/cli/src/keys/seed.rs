//! `oncely keys seed`: seeds keys that a consumer processed before it used Oncely.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::json;

use super::super::output::{self, counted, safe};
use super::super::{completions, operator};
use super::seed_file::{SeedFile, SeedLine};
use oncely_config::{Config, OBSERVER};
use oncely_core::identity::IdentityPart;
use oncely_ops::exit;
use oncely_postgres::{self as pg, MOST_SEEDS, Seed, SeedConflict, Session};
use oncely_process::preflight::open_session;
use oncely_process::shutdown;

#[derive(Debug, Args)]
pub(crate) struct KeySeedArguments {
    /// CSV with column names in its first line (tenant,key,completed_at; the last is optional), or JSON Lines with these fields; "-":
    /// standard input
    #[arg(value_name = "FILE")]
    keys: PathBuf,
    /// Consumer of the keys
    #[arg(long, add = ArgValueCompleter::new(completions::consumers))]
    consumer: String,
    /// Tenant of all keys, if the file has none
    #[arg(long)]
    tenant: Option<String>,
    /// Retention of the keys, for a consumer that is not configured here (one that calls oncely.claim)
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    retention: Option<Duration>,
    /// Only read the file and report its errors
    #[arg(long)]
    dry_run: bool,
    /// Reason, recorded with the action
    #[arg(long)]
    note: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Lines and conflicts that are printed one by one, and how many of them the JSON object has.
const TOLD: usize = 20;
const LISTED: usize = 1_000;
/// Keys per transaction, which is how many a worker that wants one of them waits for.
const BATCH: usize = MOST_SEEDS / 2;
/// How far another database's clock may be ahead; `oncely.seed_keys` accepts somewhat more, as the current time.
const AHEAD: Duration = Duration::from_secs(600);
/// Attempts of a batch that conflicts with other sessions.
const TRIES: u32 = 5;

/// A line that is not seeded.
#[derive(Debug, Serialize)]
struct RefusedLine {
    line: u64,
    why: String,
}

#[derive(Debug, Default, Serialize)]
struct SeedCounts {
    lines: u64,
    seeded: i64,
    known: i64,
    too_old: i64,
    conflicting: u64,
    refused: u64,
}

pub(super) async fn run(file: &Path, arguments: KeySeedArguments) -> crate::VerbResult {
    let config = Config::load(file)?;
    let part = |what: &str, text: &str| {
        IdentityPart::new(text.as_bytes()).with_context(|| format!("the {what} {}", safe(text)))
    };
    let consumer = part("consumer", &arguments.consumer)?;
    let tenant = arguments.tenant.as_deref().map(|tenant| part("tenant", tenant)).transpose()?;
    if let Err(why) = check_consumer(&config, &consumer, arguments.retention.is_some()) {
        output::note(&why);
        return Ok(ExitCode::from(exit::USAGE));
    }
    let name = match arguments.keys == Path::new("-") {
        true => "standard input".to_owned(),
        false => safe(&arguments.keys.display().to_string()),
    };
    let lines = SeedFile::open(&arguments.keys, tenant).with_context(|| name.clone())?;
    let (stop, _guard) = shutdown::when(shutdown::on_signal()?);
    let mut session = match arguments.dry_run {
        true => None,
        false => Some(open_session(&config).await?),
    };
    let mut seeding = SeedRun {
        name: &name,
        consumer: &consumer,
        retention: arguments.retention,
        bar: bar(),
        counts: SeedCounts::default(),
        refused: Vec::new(),
        conflicts: Vec::new(),
    };
    let mut failure = seeding.seed_all(&mut session, lines, || stop.is_cancelled()).await.err();
    seeding.bar.finish_and_clear();
    let is_over = failure.is_none() && !stop.is_cancelled();
    let SeedRun { counts, refused, conflicts, .. } = seeding;
    let told = json!({
        "consumer": consumer.as_str(), "file": name, "dry_run": arguments.dry_run, "finished": is_over, "lines": counts.lines,
        "seeded": counts.seeded, "known": counts.known, "too_old": counts.too_old, "conflicting": counts.conflicting,
        "refused": counts.refused,
    });
    if let Some(mut session) = session {
        let recorded = record(&mut session, &arguments, &told, counts.seeded).await;
        // After another failure this one may be only its consequence.
        failure = failure.or(recorded.err());
        session.close().await;
    }
    print_summary(&name, &counts, arguments.dry_run, &conflicts);
    if !is_over {
        output::note("interrupted: run it again with the same file; keys that are seeded count as known");
    }
    if arguments.json {
        let mut told = told;
        told["refused_lines"] = json!(refused);
        told["conflicts"] = json!(conflicts);
        output::print_json("oncely.keys.seed/1", told)?;
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    let is_clean = is_over && counts.refused == 0 && counts.conflicting == 0;
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

/// Checks that the consumer's keys count, and that exactly one place says for how long. Returns the advice if not.
fn check_consumer(config: &Config, consumer: &IdentityPart, has_retention: bool) -> Result<(), String> {
    let working = || config.consumers.iter().filter(|one| !one.observes());
    let is_configured = working().any(|one| one.name == *consumer);
    let observer = config.consumers.iter().find(|one| one.observes() && is_of(&one.name, consumer));
    match (observer, is_configured, has_retention) {
        (Some(observer), false, _) => Err(format!(
            "{} only observes here, and its keys count for no other consumer: remove its mode = \"observe\", and seed the keys of the consumer \
             itself",
            observer.name
        )),
        (_, true, true) => {
            Err(format!("{consumer} is configured, and its retention counts: leave --retention out"))
        }
        (_, false, false) => Err(format!(
            "{consumer} is not configured here: name one of {}; or say with --retention how long the keys of a consumer that calls oncely.claim \
             are remembered",
            working().map(|one| safe(one.name.as_str())).collect::<Vec<_>>().join(", ")
        )),
        (_, true, false) | (None, false, true) => Ok(()),
    }
}

/// Records the run among the operators' actions.
async fn record(
    session: &mut Session,
    arguments: &KeySeedArguments,
    filter: &serde_json::Value,
    count: i64,
) -> anyhow::Result<()> {
    let user = operator::name();
    let action = pg::Action {
        tenant: arguments.tenant.as_deref().unwrap_or_default(),
        verb: "seed_keys",
        user: &user,
        filter,
        count,
        reason: arguments.note.as_deref(),
    };
    let recorded = pg::record_action(&mut session.connection, &action).await;
    recorded.context("recording it (role oncely_operator)")
}

/// Returns whether the observer has this name, with or without the suffix of observers.
fn is_of(observer: &IdentityPart, named: &IdentityPart) -> bool {
    observer == named || observer.as_str().strip_suffix(OBSERVER) == Some(named.as_str())
}

fn print_summary(name: &str, counts: &SeedCounts, dry_run: bool, conflicts: &[SeedConflict]) {
    let SeedCounts { lines, seeded, known, too_old, conflicting, refused } = counts;
    if *refused > TOLD as u64 {
        output::note(&format!("{name}: {} more lines are refused", refused - TOLD as u64));
    }
    for SeedConflict { tenant, key, status, reason } in conflicts.iter().take(TOLD) {
        let reason = reason.as_deref().map(|reason| format!(" ({})", safe(reason))).unwrap_or_default();
        output::note(&format!(
            "conflict: tenant {} key {} is {status}{reason} here, and left unchanged",
            safe(tenant),
            safe(key)
        ));
    }
    if *conflicting > 0 {
        output::note(
            "a conflicting key was processed twice, or failed here: `oncely explain KEY` tells; IN_PROGRESS runs again when it comes \
             back, unless you park it (`oncely failed park`)",
        );
    }
    let what = match dry_run {
        true => format!("{} can be seeded; dry run: nothing was changed", counted(lines - refused, "line")),
        false => format!(
            "seeded {seeded}, known already or named twice {known}, past the retention {too_old}, conflicting {conflicting}"
        ),
    };
    output::note(&format!("{name}: {}: {what}, refused {refused}", counted(*lines, "line")));
}

struct SeedRun<'a> {
    name: &'a str,
    consumer: &'a IdentityPart,
    retention: Option<Duration>,
    bar: ProgressBar,
    counts: SeedCounts,
    refused: Vec<RefusedLine>,
    conflicts: Vec<SeedConflict>,
}

impl SeedRun<'_> {
    /// Seeds the lines until their end, or until stopped. Without a session it only reads them.
    async fn seed_all(
        &mut self,
        session: &mut Option<Session>,
        lines: SeedFile,
        stopped: impl Fn() -> bool,
    ) -> anyhow::Result<()> {
        let mut batch = Vec::with_capacity(BATCH);
        for line in lines {
            let SeedLine { number, seed } = line.with_context(|| self.name.to_owned())?;
            self.counts.lines += 1;
            match seed {
                Ok(seed) => batch.push((number, seed)),
                Err(why) => self.refuse(number, why),
            }
            if batch.len() == BATCH {
                self.seed_batch(session, &mut batch).await?;
                if stopped() {
                    return Ok(());
                }
            }
        }
        self.seed_batch(session, &mut batch).await
    }

    fn refuse(&mut self, line: u64, why: String) {
        self.counts.refused += 1;
        if self.counts.refused <= TOLD as u64 {
            self.bar.suspend(|| output::note(&format!("{}, line {line}: {why}", self.name)));
        }
        if self.refused.len() < LISTED {
            self.refused.push(RefusedLine { line, why });
        }
    }

    async fn seed_batch(
        &mut self,
        session: &mut Option<Session>,
        batch: &mut Vec<(u64, Seed)>,
    ) -> anyhow::Result<()> {
        let Some(session) = session else {
            batch.clear();
            self.bar.set_position(self.counts.lines);
            return Ok(());
        };
        let now = session.clock.now();
        let mut seeds = Vec::with_capacity(batch.len());
        for (number, seed) in batch.drain(..) {
            match seed.completed_at.is_some_and(|at| at > now + AHEAD) {
                true => self.refuse(
                    number,
                    "completed_at is yet to come, by more than ten minutes of the database's clock"
                        .to_owned(),
                ),
                false => seeds.push(seed),
            }
        }
        if seeds.is_empty() {
            return Ok(());
        }
        let mut tries = 1;
        let seeded = loop {
            match pg::seed_keys(&mut session.connection, self.consumer, &seeds, self.retention).await {
                // Other sessions hold some of these keys: nothing of the batch was written.
                Err(error) if tries < TRIES && is_passing(&error) => tries += 1,
                seeded => break seeded.context("seeding keys (role oncely_operator)")?,
            }
        };
        self.counts.seeded += seeded.seeded;
        self.counts.known += seeded.known;
        self.counts.too_old += seeded.too_old;
        self.counts.conflicting += seeded.conflicts.len() as u64;
        let room = LISTED.saturating_sub(self.conflicts.len());
        self.conflicts.extend(seeded.conflicts.into_iter().take(room));
        self.bar.set_position(self.counts.lines);
        Ok(())
    }
}

/// Returns whether another attempt may succeed: a deadlock, a lock timeout, a key that was collected meanwhile.
fn is_passing(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("40P01" | "55P03" | "ONC14"))
}

/// Returns a progress bar; without a terminal it draws nothing.
fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {human_pos} lines, {per_sec}, {elapsed}");
    ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}
