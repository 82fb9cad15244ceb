//! `oncely explain KEY`: explains all known facts about a key.

use std::path::Path;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use serde_json::{Value, json};

use super::completions;
use super::output::{self, Times, escape, format_age, format_count};
use oncely_config::Config;
use oncely_core::decide::KeyStatus;
use oncely_ops::exit;
use oncely_ops::story::{
    KeyStory, RepeatedDecision, fold_decisions, format_conclusion, format_decision, read_stories,
};
use oncely_ops::trail;
use oncely_postgres::{self as pg, KeyDetails, LeaseStep, LetterRow};
use oncely_process::preflight::open_session;

#[derive(Debug, Args)]
#[command(after_help = "Exit 1: nothing is known. Without --tenant, the audit trail finds the tenants.")]
pub(super) struct ExplainArguments {
    /// Exact key
    key: String,
    /// Tenant of the message
    #[arg(long)]
    tenant: Option<String>,
    /// Consumer of the message
    #[arg(long, add = ArgValueCompleter::new(completions::complete_consumers))]
    consumer: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(file: &Path, arguments: ExplainArguments, times: Times) -> crate::VerbResult {
    let config = Config::load_without_broker(file)?;
    let mut session = open_session(&config).await?;
    pg::prefer_indexes(&mut session.connection).await?;
    let (tenant, consumer) = (arguments.tenant.as_deref(), arguments.consumer.as_deref());
    let stories = read_stories(&config, &mut session, &arguments.key, tenant, consumer).await?;
    let now = session.clock.now();
    // For text, only needed if nothing is known.
    let trail_start = match arguments.json || stories.is_empty() {
        true => trail::find_oldest_time(&mut session.connection).await?,
        false => None,
    };
    session.close().await;
    if arguments.json {
        let stories: Vec<_> = stories.iter().map(to_json).collect();
        output::print_json(
            "oncely.explain/1",
            json!({ "key": arguments.key, "audit_since": trail_start, "identities": stories }),
        )?;
    } else if stories.is_empty() {
        let key = escape(&arguments.key);
        output::print(&match trail_start {
            Some(since) => format!(
                "{key}: nothing is known. It was not seen since {}, when the audit trail begins; \
                 or it came before that and was collected, or it is not decided yet: in a queue, or held by a worker that \
                 waits for something (see its log).",
                times.format_time(since)
            ),
            None => {
                format!("{key}: nothing is known; the audit trail is empty, so no message was decided yet.")
            }
        })?;
    } else {
        let texts: Vec<String> = stories
            .iter()
            .map(|story| describe_story(story, &arguments.key, config.audit.duplicates, now, times))
            .collect();
        output::print(&texts.join("\n\n"))?;
    }
    Ok(if stories.is_empty() { ExitCode::from(exit::NO) } else { ExitCode::SUCCESS })
}

/// Formats a line for each step: its state, number of refusals and last time. Results are left out: they may be large or sensitive.
fn describe_steps(steps: &[LeaseStep], times: Times) -> Vec<String> {
    let line = |step: &LeaseStep| {
        let round = if step.round > 0 { format!(", round {}", step.round) } else { String::new() };
        let at = step.done_at.or(step.started_at).map(|at| times.format_time(at)).unwrap_or_default();
        format!("  step       {}: {}{round} {at}", escape(&step.name), escape(&step.state))
            .trim_end()
            .to_owned()
    };
    steps.iter().map(line).collect()
}

/// Describes the database's record of the key.
fn describe_key(story: &KeyStory, details: &KeyDetails, now: DateTime<Utc>, times: Times) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(at) = details.completed_at {
        let what = match details.status == KeyStatus::Failed.as_str() {
            true => "given up",
            false if details.reason.is_some() => "refused",
            false => "effect",
        };
        let duration = story.timeline.iter().rev().find(|row| row.outcome == "completed").and_then(|row| {
            Some(format!(", worker {}, {:.1} ms", escape(&row.worker), to_millis(row.duration_us?)))
        });
        lines.push(format!(
            "  {what:<11}{} ({} ago){}",
            times.format_time(at),
            format_age(at, now),
            duration.unwrap_or_default()
        ));
    }
    if let Some(fingerprint) = &details.fingerprint {
        // The first four bytes name the policy, unless a client passed the SHA-256 of the body.
        let digest = fingerprint.iter().skip(if fingerprint.len() == 32 { 0 } else { 4 });
        let hex: String = digest.take(8).map(|byte| format!("{byte:02x}")).collect();
        lines.push(format!("  payload    SHA-256 {hex}…"));
    }
    if let Some(status) = details.http_status {
        lines.push(format!("  HTTP       answered with {status}"));
    }
    if let Some(why) = &story.unreadable {
        lines.push(format!("  encrypted  {}", escape(why)));
    } else if let Some(response) = &details.response {
        let compact = serde_json::from_str::<serde_json::Value>(response).map(|value| value.to_string());
        lines.push(format!("  response   {}", escape(compact.as_deref().unwrap_or(response))));
    }
    if let (Some(owner), Some(until)) = (&details.owner, details.not_before) {
        let verb = if until > now { "until" } else { "expired at" };
        lines.push(format!("  lease      held by {}, {verb} {}", escape(owner), times.format_time(until)));
    }
    if let Some(steps) = &details.steps {
        lines.extend(describe_steps(&LeaseStep::parse_steps(steps), times));
    }
    if let Some(error) = &details.last_error {
        lines.push(format!("  last error {}", escape(error)));
    }
    lines.push(describe_protection(story, details, now, times));
    if let Some(mirrored) = story.mirrored {
        let text = if mirrored { "present, of this epoch" } else { "absent; PostgreSQL detects duplicates" };
        lines.push(format!("  mirror     {text}"));
    }
    lines
}

/// Describes until when duplicates of the key are recognised.
fn describe_protection(story: &KeyStory, details: &KeyDetails, now: DateTime<Utc>, times: Times) -> String {
    match story.protected_until {
        Some(until) if until > now => format!("  dedupe     protected until {}", times.format_time(until)),
        Some(until) => {
            format!(
                "  dedupe     retention ended {}; collected at the next run of gc",
                times.format_time(until)
            )
        }
        None if details.completed_at.is_some() => {
            "  dedupe     no worker has started with this consumer on this database, so its keys are kept"
                .to_owned()
        }
        None if details.fencing_token.is_some() => {
            "  dedupe     not completed: the next delivery runs, under a lease only".to_owned()
        }
        None => "  dedupe     not completed: the next delivery runs".to_owned(),
    }
}

/// Describes all known facts about a key of one tenant and consumer.
fn describe_story(
    story: &KeyStory,
    key: &str,
    lists_duplicates: bool,
    now: DateTime<Utc>,
    times: Times,
) -> String {
    let head =
        format!("{} · tenant {} · key {}", escape(&story.consumer), escape(&story.tenant), escape(key));
    let mut lines = vec![head, format!("  {}", format_conclusion(story))];
    if let Some(details) = &story.details {
        lines.extend(describe_key(story, details, now, times));
    }
    for (index, decision) in fold_decisions(&story.timeline).into_iter().enumerate() {
        let label = if index == 0 { "timeline" } else { "" };
        lines.push(format!(
            "  {label:<11}{}  {}",
            times.format_time(decision.first.occurred_at),
            describe_decision(&decision, times)
        ));
    }
    for (index, letter) in story.letters.iter().enumerate() {
        let label = if index == 0 { "letters" } else { "" };
        lines.push(format!("  {label:<11}{}", describe_letter(letter, times)));
    }
    if !lists_duplicates && story.timeline.iter().all(|row| row.outcome != "duplicate") {
        lines.push("             (duplicates are listed only where audit.duplicates = true)".to_owned());
    }
    lines.join("\n")
}

/// Describes a decision, and its repetitions.
fn describe_decision(decision: &RepeatedDecision<'_>, times: Times) -> String {
    match decision.count {
        1 => match &decision.first.trace_id {
            Some(trace) => format!("{}  trace {}", format_decision(decision.first), escape(trace)),
            None => format_decision(decision.first),
        },
        count => format!(
            "{count} × {}, until {}",
            format_decision(decision.first),
            times.format_time(decision.last.occurred_at)
        ),
    }
}

/// Describes the state of a dead letter of the key.
fn describe_letter(letter: &LetterRow, times: Times) -> String {
    let mut text = format!("{}  {}: {}", letter.id, letter.reason, letter.state);
    text.push_str(&format!(" since {}", times.format_time(letter.updated_at)));
    if letter.generation > 1 {
        text.push_str(&format!(
            ", came back {} after a requeue",
            format_count(letter.generation - 1, "time")
        ));
    }
    if letter.times > 1 {
        text.push_str(&format!(", dead-lettered {} times", letter.times));
    }
    text
}

fn to_millis(micros: i64) -> f64 {
    #[allow(clippy::cast_precision_loss)] // shown with one decimal
    let millis = micros as f64 / 1_000.0;
    millis
}

/// Formats all known facts about a key of one tenant and consumer as JSON.
pub(super) fn to_json(story: &KeyStory) -> Value {
    json!({
        "tenant": story.tenant, "consumer": story.consumer, "verdict": format_conclusion(story), "key": story.details,
        "protected_until": story.protected_until, "mirrored": story.mirrored, "timeline": story.timeline,
        "letters": story.letters, "unreadable": story.unreadable,
    })
}
