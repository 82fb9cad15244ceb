//! `oncely outbox retry` and `oncely outbox discard`.

use std::path::Path;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::Args;
use serde_json::{Value, json};
use sqlx::Connection as _;

use super::super::confirmation::{BulkChangeOptions, ChangePlan, Confirmation, MAX_SAMPLES};
use super::super::operator;
use super::super::output::{self, escape, format_age, format_count};
use super::{EventFilterArguments, SCHEMA};
use oncely_config::Config;
use oncely_postgres::{self as pg, EventChange, EventChangeAuthor, EventRow};
use oncely_process::preflight::open_session;

/// The options of `retry` and `discard`.
#[derive(Debug, Args)]
pub(crate) struct EventChangeArguments {
    #[command(flatten)]
    selection: EventFilterArguments,
    #[command(flatten)]
    options: BulkChangeOptions,
}

/// Returns the verb of a change.
fn verb(change: EventChange) -> &'static str {
    match change {
        EventChange::Retry => "retry",
        EventChange::Discard => "discard",
    }
}

/// The planned change.
struct EventChangePlan {
    verb: &'static str,
    events: Vec<EventRow>,
    pub now: DateTime<Utc>,
}

pub(super) async fn run(
    file: &Path,
    arguments: EventChangeArguments,
    change: EventChange,
) -> crate::VerbResult {
    let EventChangeArguments { selection, options } = arguments;
    if let Some(code) = options.require_selection(!selection.is_unfiltered(), "ids or a filter") {
        return Ok(code);
    }
    let config = Config::load(file)?;
    let mut session = open_session(&config).await?;
    let filter = selection.to_filter(Some("parked"), options.max.saturating_add(1));
    let events = pg::list_events(&mut session.connection, &filter).await?;
    let now = session.clock.now();
    let plan = EventChangePlan { verb: verb(change), events, now };
    if let Confirmation::Exit(code) = options.confirm(&plan)? {
        return Ok(code);
    }
    let events = &plan.events;
    let mut transaction = session.connection.begin().await?;
    let author = EventChangeAuthor {
        user: &operator::name(),
        reason: options.note.as_deref(),
        filter: &serde_json::to_value(&filter)?,
    };
    let done_count =
        pg::change_events(&mut transaction, now, change, events, filter.state.as_deref(), author).await?;
    transaction.commit().await?;
    let busy_count = events.len().saturating_sub(done_count);
    output::print_note(&match change {
        EventChange::Retry => format!("{done_count} are due now"),
        EventChange::Discard => format!("discarded {done_count}"),
    });
    if busy_count > 0 {
        output::print_note(&format!("{busy_count} left alone: a relay holds them, or they have changed"));
    }
    if options.json {
        plan.print_json(false, json!({ "done": done_count, "left_alone": busy_count }))?;
    }
    session.close().await;
    Ok(ExitCode::SUCCESS)
}

impl EventChangePlan {
    /// Returns the numbers of events by exchange and reason, the greatest first.
    fn groups(&self) -> Vec<((&str, &str), usize)> {
        output::tally(
            self.events.iter().map(|event| (event.exchange.as_str(), event.reason.as_deref().unwrap_or("-"))),
        )
    }
}

impl ChangePlan for EventChangePlan {
    const ROWS: &'static str = "events";
    const SCHEMA: &'static str = SCHEMA;

    fn verb(&self) -> &'static str {
        self.verb
    }

    fn count(&self) -> usize {
        self.events.len()
    }

    fn describe(&self) -> String {
        let mut lines = Vec::new();
        if let Some(oldest) = self.events.first() {
            let age = format_age(oldest.created_at, self.now);
            let events = format_count(self.events.len(), "event");
            lines.push(format!("{} {events}, the oldest {age} old", self.verb));
        }
        for ((exchange, reason), count) in self.groups() {
            lines.push(format!("  {count:>6}  exchange {:?}  {reason}", escape(exchange)));
        }
        for event in self.events.iter().take(MAX_SAMPLES) {
            lines.push(format!(
                "  e.g. {}  {} · {}  {}",
                event.id,
                escape(&event.tenant),
                escape(&event.routing_key),
                escape(event.last_error.as_deref().unwrap_or_default())
            ));
        }
        lines.join("\n")
    }

    fn to_json(&self) -> Value {
        let samples: Vec<Value> = self
            .events
            .iter()
            .take(MAX_SAMPLES)
            .map(|e| json!({ "id": e.id, "tenant": e.tenant, "exchange": e.exchange, "routing_key": e.routing_key, "reason": e.reason }))
            .collect();
        let groups: Vec<Value> = self
            .groups()
            .into_iter()
            .map(|((exchange, reason), count)| json!({ "exchange": exchange, "reason": reason, "count": count }))
            .collect();
        json!({ "verb": self.verb, "count": self.events.len(), "groups": groups, "samples": samples })
    }
}
