//! `oncely consumers list|pause|resume`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use chrono::{DateTime, TimeDelta, Utc};
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use serde_json::json;
use sqlx::PgConnection;

use super::connection::connect;
use super::output::{self, List, Output, Row, Times, escape, format_age, format_seconds};
use super::{completions, operator};
use oncely_config::Config;
use oncely_ops::exit;
use oncely_ops::overview::{ConsumerOverview, ConsumerState, Overview};
use oncely_postgres as pg;

#[derive(Debug, Subcommand)]
pub(super) enum ConsumersCommand {
    /// List consumers: state and reason, workers, the last minute; exit 1 if none exists
    #[command(
        after_help = "DONE, DUPLICATES and the durations are of the last whole minute, as processes report it. A \
                      consumer is stalled if no message succeeds for a cause that is not the message's own, and \
                      paused if an operator has paused it."
    )]
    List(ConsumerListArguments),
    /// Pause a consumer: its workers return unstarted messages within five seconds, and take none until it is resumed
    #[command(
        after_help = "A second pause changes reason and end. Recorded in oncely.operator_actions. Exit 1: no worker \
                      has ever started with this consumer. 4: the login lacks the role oncely_operator."
    )]
    Pause(PauseArguments),
    /// Resume a paused consumer
    #[command(
        after_help = "Exit 1: the consumer is not paused. 4: the login lacks the role oncely_operator."
    )]
    Resume(ResumeArguments),
}

#[derive(Debug, Args)]
pub(super) struct ConsumerListArguments {
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct PauseArguments {
    /// Consumer to pause
    #[arg(add = ArgValueCompleter::new(completions::complete_consumers))]
    pub consumer: String,
    /// Reason, shown while the consumer is paused
    #[arg(long)]
    pub reason: String,
    /// Duration, such as 30m [default: until it is resumed]
    #[arg(long = "for", value_name = "DURATION", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ResumeArguments {
    /// Consumer to resume
    #[arg(add = ArgValueCompleter::new(completions::complete_consumers))]
    consumer: String,
    /// Reason, recorded with the action
    #[arg(long)]
    reason: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const SCHEMA: &str = "oncely.consumers/1";

pub(super) async fn run(file: &Path, verb: ConsumersCommand, times: Times) -> crate::VerbResult {
    let mut connection = connect(file, "oncely consumers").await?;
    match verb {
        ConsumersCommand::List(arguments) => {
            let configured = Config::examine(file).0.map(|config| config.consumer_names());
            let now = pg::read_database_time(&mut connection).await?;
            let overview = Overview::read(&mut connection, configured.as_deref(), now).await?;
            let none = "no consumer is configured, and no worker has started on this database";
            List { schema: SCHEMA, field: "consumers", rows: &overview.consumers, none }
                .print(arguments.output, times)
        }
        ConsumersCommand::Pause(pause) => self::pause(&mut connection, &pause, times).await,
        ConsumersCommand::Resume(arguments) => resume(&mut connection, &arguments).await,
    }
}

/// Pauses a consumer, and prints by when its workers obey.
async fn pause(connection: &mut PgConnection, arguments: &PauseArguments, times: Times) -> crate::VerbResult {
    let PauseArguments { consumer, reason, duration, json } = arguments;
    let name = escape(consumer);
    let consumers = pg::list_consumers(connection).await?;
    if !consumers.iter().any(|known| known.consumer == *consumer) {
        let names: Vec<String> = consumers.iter().map(|known| escape(&known.consumer)).collect();
        output::print_note(&format!(
            "nothing was changed: no worker has started with the consumer {name} on this database, which knows {}",
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        ));
        return Ok(ExitCode::from(exit::NO));
    }
    let now = pg::read_database_time(connection).await?;
    let until = match duration {
        None => None,
        Some(duration) => match pause_end(now, *duration) {
            Some(until) => Some(until),
            None => {
                output::print_note("a pause lasts for a second at least, and for ten years at most");
                return Ok(ExitCode::from(exit::USAGE));
            }
        },
    };
    let previous =
        pg::list_pauses(connection).await?.into_iter().find(|previous| previous.consumer == *consumer);
    pg::pause_consumer(connection, consumer, until, reason, &operator::name())
        .await
        .with_context(|| format!("pausing {name} (role oncely_operator)"))?;
    let end = match until {
        Some(until) => format!("until {}", times.format_time(until)),
        None => format!("until `oncely consumers resume {name}`"),
    };
    output::print_note(&format!("{name} is paused {end}; its workers obey within five seconds"));
    if let Some(previous) = previous {
        output::print_note(&format!(
            "it was paused already, {} ago by {}: {}",
            format_age(previous.paused_at, now),
            escape(&previous.paused_by),
            escape(&previous.reason)
        ));
    }
    if *json {
        let pauses = pg::list_pauses(connection).await?;
        let pause = pauses.iter().find(|pause| pause.consumer == *consumer);
        output::print_json(SCHEMA, json!({ "consumer": consumer, "pause": pause }))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the end of a pause; `None` if the duration is out of bounds.
fn pause_end(now: DateTime<Utc>, duration: Duration) -> Option<DateTime<Utc>> {
    let duration = TimeDelta::from_std(duration).ok()?;
    let is_fine = (TimeDelta::seconds(1)..=TimeDelta::days(3_650)).contains(&duration);
    is_fine.then(|| now.checked_add_signed(duration)).flatten()
}

/// Ends a consumer's pause, and prints whether it was paused.
async fn resume(connection: &mut PgConnection, arguments: &ResumeArguments) -> crate::VerbResult {
    let ResumeArguments { consumer, reason, json } = arguments;
    let name = escape(consumer);
    let is_resumed = pg::resume_consumer(connection, consumer, reason.as_deref(), &operator::name())
        .await
        .with_context(|| format!("resuming {name} (role oncely_operator)"))?;
    output::print_note(&match is_resumed {
        true => format!("{name} is resumed; its workers obey within five seconds"),
        false => format!("nothing was changed: {name} is not paused"),
    });
    if *json {
        output::print_json(
            SCHEMA,
            json!({ "consumer": consumer, "pause": serde_json::Value::Null, "resumed": is_resumed }),
        )?;
    }
    Ok(if is_resumed { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

impl Row for ConsumerOverview {
    const SCHEMA: &'static str = "oncely.consumers.consumer/1";
    const HEADS: &'static [&'static str] = &[
        "CONSUMER", "STATE", "WORKERS", "INFLIGHT", "HELD", "DONE/MIN", "DUP/MIN", "P50", "P99", "HORIZON",
        "WHY",
    ];

    fn cells(&self, times: Times) -> Vec<String> {
        let quantile = |of: Option<f64>| of.map_or_else(|| "–".to_owned(), format_seconds);
        vec![
            self.consumer.clone(),
            self.state.label().to_owned(),
            self.workers.to_string(),
            self.inflight.to_string(),
            match self.held_over {
                0 => self.held.to_string(),
                over => format!("{} ({over} over)", self.held),
            },
            self.done.to_string(),
            self.duplicates.to_string(),
            quantile(self.p50),
            quantile(self.p99),
            self.retention.map_or_else(|| "–".to_owned(), format_span),
            describe_state(self, times),
        ]
    }
}

/// Formats seconds as `7days 2h`.
fn format_span(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds.trunc()).unwrap_or_default();
    humantime::format_duration(whole).to_string()
}

/// Describes the cause of a consumer's state: by whom, since when, until when and why.
fn describe_state(one: &ConsumerOverview, times: Times) -> String {
    let mut parts = Vec::new();
    if let Some(by) = &one.paused_by {
        parts.push(format!("by {by}"));
    }
    parts.extend(one.since.map(|since| format!("since {}", times.format_time(since))));
    parts.extend(one.until.map(|until| format!("until {}", times.format_time(until))));
    let mut text = parts.join(" ");
    if let Some(reason) = &one.reason {
        text = format!("{text}: {reason}");
    }
    if one.state == ConsumerState::NoWorker && one.configured == Some(false) {
        text.push_str("not in this configuration");
    }
    text
}
