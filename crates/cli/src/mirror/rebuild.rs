//! `oncely mirror rebuild`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use chrono::{DateTime, TimeDelta, Utc};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::super::output::{self, Times, escape};
use super::super::{completions, operator};
use super::{SCHEMA, report_no_mirror};
use oncely_config::Config;
use oncely_ops::exit;
use oncely_postgres::{self as pg, KeyPosition, Session};
use oncely_process::preflight::open_session;
use oncely_process::shutdown;

#[derive(Debug, Args)]
pub(crate) struct MirrorRebuildArguments {
    /// Only this consumer [default: all that are configured]
    #[arg(long, add = ArgValueCompleter::new(completions::complete_consumers))]
    consumer: Option<String>,
    /// Maximum number of keys per second
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Resume an interrupted run at the place that it printed
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
    /// Reason, recorded with the action
    #[arg(long)]
    note: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Keys per statement.
const BATCH_KEYS: u32 = 1_000;
/// Maximum number of pending records; they are not counted beyond it.
const MAX_PENDING: i64 = 10_000;
const PENDING_PAUSE: Duration = Duration::from_millis(500);

/// A place in the walk, printed and accepted by `--after`: consumer, time, tenant and key.
type ResumePosition = (String, DateTime<Utc>, String, String);

/// Selects the mirrored consumers to rebuild, from the one where an earlier run ended, in the order of their names. Returns those without a
/// started worker apart, with a note for each: they have no key, and the others are rebuilt all the same.
async fn select_consumers(
    config: &Config,
    session: &mut Session,
    selection: Option<&str>,
    after: Option<&ResumePosition>,
) -> Result<(Vec<String>, Vec<String>), sqlx::Error> {
    let mut names = config.mirrored_consumers();
    names.sort();
    names.retain(|name| selection.is_none_or(|wanted| wanted == name));
    names.retain(|name| after.is_none_or(|(consumer, ..)| consumer <= name));
    let consumers = pg::list_consumers(&mut session.connection).await?;
    let (names, skipped): (Vec<String>, Vec<String>) =
        names.into_iter().partition(|name| consumers.iter().any(|one| one.consumer == *name));
    for name in &skipped {
        output::print_note(&format!(
            "{}: no worker has started with it on this database; skipped",
            escape(name)
        ));
    }
    Ok((names, skipped))
}

pub(super) async fn run(file: &Path, arguments: MirrorRebuildArguments, times: Times) -> crate::VerbResult {
    let config = Config::load(file)?;
    let Some(settings) = &config.mirror else { return Ok(report_no_mirror()) };
    let after: Option<ResumePosition> = match arguments.after.as_deref().map(serde_json::from_str).transpose()
    {
        Ok(after) => after,
        Err(_) => {
            output::print_note("--after takes the place printed by an earlier run");
            return Ok(ExitCode::from(exit::USAGE));
        }
    };
    let mut session = open_session(&config).await?;
    let until = session.clock.now();
    let since = until - TimeDelta::from_std(settings.ttl)?;
    let (stop, _guard) = shutdown::cancel_when(shutdown::on_signal()?);
    let selection = arguments.consumer.as_deref();
    let (names, skipped) = select_consumers(&config, &mut session, selection, after.as_ref()).await?;
    let (user, filter) = (operator::name(), json!({ "consumers": names, "since": since }));
    let mut action = pg::Action {
        tenant: "",
        verb: "begin rebuild_mirror",
        user: &user,
        filter: &filter,
        count: 0,
        reason: arguments.note.as_deref(),
    };
    // Recorded before the first record is written, so that the start is known however the run ends.
    let recorded = pg::record_action(&mut session.connection, &action).await;
    recorded.context("recording it (role oncely_operator)")?;
    let mut rebuild_run = RebuildRun {
        since,
        until,
        queued: 0,
        rate: arguments.rate,
        bar: build_progress_bar(),
        position: None,
    };
    let result = rebuild_run.rebuild_all(&mut session, &names, after, || stop.is_cancelled()).await;
    rebuild_run.bar.finish_and_clear();
    let is_finished = matches!(result, Ok(true));
    action.verb = "rebuild_mirror";
    action.count = rebuild_run.queued;
    let recorded = pg::record_action(&mut session.connection, &action).await;
    session.close().await;
    output::print_note(&format!(
        "mirror records of {} keys since {} written",
        rebuild_run.queued,
        times.format_time(since)
    ));
    let next = rebuild_run
        .position
        .filter(|_| !is_finished)
        .map(|position| oncely_core::shown::escape_json(&position.to_string()).into_owned());
    if let Some(next) = &next {
        output::print_note(&format!("interrupted; continue with --after '{}'", next.replace('\'', r"'\''")));
    }
    result?;
    recorded?;
    if arguments.json {
        output::print_json(
            SCHEMA,
            json!({ "queued": rebuild_run.queued, "finished": is_finished, "next": next, "skipped": skipped }),
        )?;
    }
    Ok(if is_finished { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

struct RebuildRun {
    since: DateTime<Utc>,
    until: DateTime<Utc>,
    queued: i64,
    rate: u32,
    bar: ProgressBar,
    /// The place where the last batch ended.
    position: Option<Value>,
}

impl RebuildRun {
    /// Queues mirror records of all consumers' keys, from `after` on. Returns false if it was stopped.
    async fn rebuild_all(
        &mut self,
        session: &mut Session,
        names: &[String],
        after: Option<ResumePosition>,
        is_stopped: impl Fn() -> bool,
    ) -> anyhow::Result<bool> {
        for name in names {
            let start = match &after {
                Some((consumer, at, tenant, key)) if consumer == name => {
                    KeyPosition { completed_at: *at, name: Some((tenant.clone(), key.clone())) }
                }
                _ => KeyPosition { completed_at: self.until, name: None },
            };
            self.rebuild_consumer(session, name, start, &is_stopped).await?;
            if is_stopped() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Queues mirror records of a consumer's keys, the newest first, until its last key or until stopped.
    async fn rebuild_consumer(
        &mut self,
        session: &mut Session,
        consumer: &str,
        mut position: KeyPosition,
        is_stopped: impl Fn() -> bool,
    ) -> anyhow::Result<()> {
        let batch = BATCH_KEYS.min(self.rate);
        let pause = Duration::from_secs_f64(f64::from(batch) / f64::from(self.rate));
        let limit = i32::try_from(batch).unwrap_or(i32::MAX);
        self.bar.set_message(escape(consumer));
        while !is_stopped() {
            let pending = pg::read_mirror_queue_status(&mut session.connection).await?.records;
            if pending >= MAX_PENDING {
                tokio::time::sleep(PENDING_PAUSE).await;
                continue;
            }
            let (records, next) =
                pg::queue_mirror_again(&mut session.connection, consumer, self.since, &position, limit)
                    .await
                    .with_context(|| {
                        format!("writing mirror records of {} (role oncely_operator)", escape(consumer))
                    })?;
            self.queued += records;
            let Some(next) = next else { return Ok(()) };
            self.show_progress(next.completed_at);
            if let Some((tenant, key)) = &next.name {
                self.position = Some(json!([consumer, next.completed_at, tenant, key]));
            }
            position = next;
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Moves the progress bar to a time that the walk has reached.
    fn show_progress(&self, at: DateTime<Utc>) {
        let done = (self.until - at).num_seconds() * 100;
        let whole = (self.until - self.since).num_seconds().max(1);
        self.bar.set_position(u64::try_from(done / whole).unwrap_or(0).min(100));
    }
}

/// Creates a progress bar; without a terminal it draws nothing.
fn build_progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:40} {pos} %");
    ProgressBar::new(100).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
