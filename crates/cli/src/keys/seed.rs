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

use super::super::output::{self, escape, format_count};
use super::super::{completions, operator};
use super::seed_file::{SeedFile, SeedLine};
use oncely_config::{Config, OBSERVER_SUFFIX};
use oncely_core::identity::IdentityPart;
use oncely_ops::exit;
use oncely_postgres::{self as pg, MAX_SEEDS, Seed, SeedConflict, Session};
use oncely_process::preflight::open_session;
use oncely_process::shutdown;

#[derive(Debug, Args)]
pub(crate) struct KeySeedArguments {
    /// CSV with column names in its first line (tenant,key,completed_at; the last is optional), or JSON Lines with these fields; "-":
    /// standard input
    #[arg(value_name = "FILE")]
    keys: PathBuf,
    /// Consumer of the keys
    #[arg(long, add = ArgValueCompleter::new(completions::complete_consumers))]
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
const MAX_PRINTED: usize = 20;
const MAX_LISTED: usize = 1_000;
/// Keys per transaction, which is how many a worker that wants one of them waits for.
const BATCH_KEYS: usize = MAX_SEEDS / 2;
/// How far another database's clock may be ahead; `oncely.seed_keys` accepts somewhat more, as the current time.
const MAX_CLOCK_LEAD: Duration = Duration::from_secs(600);
/// Attempts of a batch that conflicts with other sessions.
const MAX_TRIES: u32 = 5;

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
        IdentityPart::new(text.as_bytes()).with_context(|| format!("the {what} {}", escape(text)))
    };
    let consumer = part("consumer", &arguments.consumer)?;
    let tenant = arguments.tenant.as_deref().map(|tenant| part("tenant", tenant)).transpose()?;
    if let Err(why) = check_consumer(&config, &consumer, arguments.retention.is_some()) {
        output::print_note(&why);
        return Ok(ExitCode::from(exit::USAGE));
    }
    let name = match arguments.keys == Path::new("-") {
        true => "standard input".to_owned(),
        false => escape(&arguments.keys.display().to_string()),
    };
    let lines = SeedFile::open(&arguments.keys, tenant).with_context(|| name.clone())?;
    let (stop, _guard) = shutdown::cancel_when(shutdown::on_signal()?);
    let mut session = match arguments.dry_run {
        true => None,
        false => Some(open_session(&config).await?),
    };
    let mut seed_run = SeedRun {
        name: &name,
        consumer: &consumer,
        retention: arguments.retention,
        bar: build_progress_bar(),
        counts: SeedCounts::default(),
        refused: Vec::new(),
        conflicts: Vec::new(),
    };
    let mut failure = seed_run.seed_all(&mut session, lines, || stop.is_cancelled()).await.err();
    seed_run.bar.finish_and_clear();
    let is_finished = failure.is_none() && !stop.is_cancelled();
    let SeedRun { counts, refused, conflicts, .. } = seed_run;
    let summary = json!({
        "consumer": consumer.as_str(), "file": name, "dry_run": arguments.dry_run, "finished": is_finished, "lines": counts.lines,
        "seeded": counts.seeded, "known": counts.known, "too_old": counts.too_old, "conflicting": counts.conflicting,
        "refused": counts.refused,
    });
    if let Some(mut session) = session {
        let result = record_run(&mut session, &arguments, &summary, counts.seeded).await;
        // After another failure this one may be only its consequence.
        failure = failure.or(result.err());
        session.close().await;
    }
    print_summary(&name, &counts, arguments.dry_run, &conflicts);
    if !is_finished {
        output::print_note(
            "interrupted: run it again with the same file; keys that are seeded count as known",
        );
    }
    if arguments.json {
        let mut summary = summary;
        summary["refused_lines"] = json!(refused);
        summary["conflicts"] = json!(conflicts);
        output::print_json("oncely.keys.seed/1", summary)?;
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    let is_clean = is_finished && counts.refused == 0 && counts.conflicting == 0;
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

/// Checks that the consumer's keys count, and that either the configuration or `--retention` sets their retention; the error is advice.
fn check_consumer(config: &Config, consumer: &IdentityPart, has_retention: bool) -> Result<(), String> {
    let working = || config.consumers.iter().filter(|one| !one.is_observer());
    let is_configured = working().any(|one| one.name == *consumer);
    let observer =
        config.consumers.iter().find(|one| one.is_observer() && is_observer_of(&one.name, consumer));
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
            working().map(|one| escape(one.name.as_str())).collect::<Vec<_>>().join(", ")
        )),
        (_, true, false) | (None, false, true) => Ok(()),
    }
}

/// Records the run among the operators' actions.
async fn record_run(
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
    let result = pg::record_action(&mut session.connection, &action).await;
    result.context("recording it (role oncely_operator)")
}

/// Returns whether the observer has this name, with or without the suffix of observers.
fn is_observer_of(observer: &IdentityPart, consumer: &IdentityPart) -> bool {
    observer == consumer || observer.as_str().strip_suffix(OBSERVER_SUFFIX) == Some(consumer.as_str())
}

/// Prints how many keys were seeded, known, refused and in conflict.
fn print_summary(name: &str, counts: &SeedCounts, dry_run: bool, conflicts: &[SeedConflict]) {
    let SeedCounts { lines, seeded, known, too_old, conflicting, refused } = counts;
    if *refused > MAX_PRINTED as u64 {
        output::print_note(&format!("{name}: {} more lines are refused", refused - MAX_PRINTED as u64));
    }
    for SeedConflict { tenant, key, status, reason } in conflicts.iter().take(MAX_PRINTED) {
        let reason = reason.as_deref().map(|reason| format!(" ({})", escape(reason))).unwrap_or_default();
        output::print_note(&format!(
            "conflict: tenant {} key {} is {status}{reason} here, and left unchanged",
            escape(tenant),
            escape(key)
        ));
    }
    if *conflicting > 0 {
        output::print_note(
            "a conflicting key was processed twice, or failed here: `oncely explain KEY` tells; IN_PROGRESS runs again when it comes \
             back, unless you park it (`oncely failed park`)",
        );
    }
    let what = match dry_run {
        true => {
            format!("{} can be seeded; dry run: nothing was changed", format_count(lines - refused, "line"))
        }
        false => format!(
            "seeded {seeded}, known already or named twice {known}, past the retention {too_old}, conflicting {conflicting}"
        ),
    };
    output::print_note(&format!("{name}: {}: {what}, refused {refused}", format_count(*lines, "line")));
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
        is_stopped: impl Fn() -> bool,
    ) -> anyhow::Result<()> {
        let mut batch = Vec::with_capacity(BATCH_KEYS);
        for line in lines {
            let SeedLine { number, seed } = line.with_context(|| self.name.to_owned())?;
            self.counts.lines += 1;
            match seed {
                Ok(seed) => batch.push((number, seed)),
                Err(why) => self.refuse(number, why),
            }
            if batch.len() == BATCH_KEYS {
                self.seed_batch(session, &mut batch).await?;
                if is_stopped() {
                    return Ok(());
                }
            }
        }
        self.seed_batch(session, &mut batch).await
    }

    /// Counts a refused line, and prints and lists it within their limits.
    fn refuse(&mut self, line: u64, why: String) {
        self.counts.refused += 1;
        if self.counts.refused <= MAX_PRINTED as u64 {
            self.bar.suspend(|| output::print_note(&format!("{}, line {line}: {why}", self.name)));
        }
        if self.refused.len() < MAX_LISTED {
            self.refused.push(RefusedLine { line, why });
        }
    }

    /// Seeds a batch in one transaction, repeatedly if it conflicts with other sessions.
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
            match seed.completed_at.is_some_and(|at| at > now + MAX_CLOCK_LEAD) {
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
        let report = loop {
            match pg::seed_keys(&mut session.connection, self.consumer, &seeds, self.retention).await {
                // Other sessions hold some of these keys: nothing of the batch was written.
                Err(error) if tries < MAX_TRIES && is_transient(&error) => tries += 1,
                report => break report.context("seeding keys (role oncely_operator)")?,
            }
        };
        self.counts.seeded += report.seeded;
        self.counts.known += report.known;
        self.counts.too_old += report.too_old;
        self.counts.conflicting += report.conflicts.len() as u64;
        let capacity = MAX_LISTED.saturating_sub(self.conflicts.len());
        self.conflicts.extend(report.conflicts.into_iter().take(capacity));
        self.bar.set_position(self.counts.lines);
        Ok(())
    }
}

/// Returns whether another attempt may succeed: a deadlock, a lock timeout, a key that was collected meanwhile.
fn is_transient(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("40P01" | "55P03" | "ONC14"))
}

/// Creates a progress bar; without a terminal it draws nothing.
fn build_progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {human_pos} lines, {per_sec}, {elapsed}");
    ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}
