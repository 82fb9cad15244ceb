//! `oncely outbox retry` and `oncely outbox discard`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::Args;
use serde_json::{Value, json};
use sqlx::Connection as _;

use super::super::output::{self, age, safe};
use super::super::{consent, session};
use super::{SCHEMA, Which};
use crate::config::Config;
use crate::exit;
use crate::pg::{self, Action, EventChange, EventRow};

/// What every change takes.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    which: Which,
    /// All that are parked
    #[arg(long)]
    all: bool,
    /// Only show the plan
    #[arg(long)]
    dry_run: bool,
    /// Agree to the plan without being asked
    #[arg(long)]
    yes: bool,
    /// Refuse to change more than this
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    max: i64,
    /// Why, for the record
    #[arg(long)]
    note: Option<String>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// How many events a plan shows.
const SAMPLES: usize = 5;

fn verb(change: EventChange) -> &'static str {
    match change {
        EventChange::Retry => "retry",
        EventChange::Discard => "discard",
    }
}

pub(super) async fn run(file: &Path, asked: Arguments, change: EventChange) -> anyhow::Result<ExitCode> {
    let verb = verb(change);
    if asked.which.is_any() && !asked.all {
        output::note("which ones? Name ids or a filter, or say --all");
        return Ok(ExitCode::from(2));
    }
    let config = Config::load(file)?;
    let mut session = session::open(&config).await?;
    let filter = asked.which.filter(Some("parked"), asked.max.saturating_add(1));
    let found = pg::events(&mut session.connection, &filter).await?;
    let now = session.clock.now();
    if i64::try_from(found.len()).unwrap_or(i64::MAX) > asked.max {
        let max = asked.max;
        output::note(&format!("more than {max} events match: narrow it down, or raise --max"));
        return Ok(ExitCode::from(exit::REFUSED));
    }
    if asked.json && (asked.dry_run || found.is_empty()) {
        print_json(verb, &found, true, json!({}))?;
    } else if !asked.json || !asked.yes {
        output::note(&plan(verb, &found, now));
    }
    if found.is_empty() {
        output::note(&format!("nothing to {verb}"));
        return Ok(ExitCode::from(exit::NO));
    }
    if asked.dry_run {
        output::note("dry run: nothing was changed");
        return Ok(ExitCode::SUCCESS);
    }
    if !asked.yes && !consent::ask(found.len())? {
        return Ok(ExitCode::from(exit::REFUSED));
    }
    let mut transaction = session.connection.begin().await?;
    let done = pg::change_events(&mut transaction, now, change, &found, filter.state.as_deref()).await?;
    let mut tenants = done.clone();
    tenants.sort();
    tenants.dedup();
    let action = Action {
        tenant: if tenants.len() == 1 { tenants[0].as_str() } else { "" },
        verb: match change {
            EventChange::Retry => "retry_events",
            EventChange::Discard => "discard_events",
        },
        user: &consent::user(),
        filter: &serde_json::to_value(&filter)?,
        count: i64::try_from(done.len()).unwrap_or(i64::MAX),
        reason: asked.note.as_deref(),
    };
    pg::record_action(&mut transaction, now, &action).await?;
    transaction.commit().await?;
    let busy = found.len().saturating_sub(done.len());
    output::note(&match change {
        EventChange::Retry => format!("{} are due now", done.len()),
        EventChange::Discard => format!("discarded {}", done.len()),
    });
    if busy > 0 {
        output::note(&format!("{busy} left alone: a relay holds them, or they have changed"));
    }
    if asked.json {
        print_json(verb, &found, false, json!({ "done": done.len(), "left_alone": busy }))?;
    }
    session.close().await;
    Ok(ExitCode::SUCCESS)
}

fn groups(events: &[EventRow]) -> Vec<((&str, &str), usize)> {
    let mut groups: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for event in events {
        *groups.entry((event.exchange.as_str(), event.reason.as_deref().unwrap_or("-"))).or_default() += 1;
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    groups
}

fn plan(verb: &str, events: &[EventRow], now: DateTime<Utc>) -> String {
    let mut lines = Vec::new();
    if let Some(oldest) = events.first() {
        lines.push(format!(
            "{verb} {} event(s), the oldest {} old",
            events.len(),
            age(oldest.created_at, now)
        ));
    }
    for ((exchange, reason), count) in groups(events) {
        lines.push(format!("  {count:>6}  exchange {:?}  {reason}", safe(exchange)));
    }
    for event in events.iter().take(SAMPLES) {
        lines.push(format!(
            "  e.g. {}  {} · {}  {}",
            event.id,
            safe(&event.tenant),
            safe(&event.routing_key),
            safe(event.last_error.as_deref().unwrap_or_default())
        ));
    }
    lines.join("\n")
}

/// The plan for programs; `more` says what was done.
fn print_json(verb: &str, events: &[EventRow], dry_run: bool, more: Value) -> anyhow::Result<()> {
    let samples: Vec<Value> = events
        .iter()
        .take(SAMPLES)
        .map(|e| json!({ "id": e.id, "tenant": e.tenant, "exchange": e.exchange, "routing_key": e.routing_key, "reason": e.reason }))
        .collect();
    let groups: Vec<Value> = groups(events)
        .into_iter()
        .map(|((exchange, reason), count)| json!({ "exchange": exchange, "reason": reason, "count": count }))
        .collect();
    let mut object = json!({ "verb": verb, "dry_run": dry_run, "count": events.len(), "groups": groups, "samples": samples });
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    output::print_json(SCHEMA, object)
}
