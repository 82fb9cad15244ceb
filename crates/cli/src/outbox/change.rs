//! `oncely outbox retry` and `oncely outbox discard`.

use std::path::Path;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::Args;
use serde_json::{Value, json};
use sqlx::Connection as _;

use super::super::confirmation::{BulkChangeOptions, ChangePlan, Confirmation, SAMPLES};
use super::super::operator;
use super::super::output::{self, age, counted, safe};
use super::{EventFilterArguments, SCHEMA};
use oncely_config::Config;
use oncely_postgres::{self as pg, EventChange, EventChangeAuthor, EventRow};
use oncely_process::preflight::open_session;

/// The options of `retry` and `discard`.
#[derive(Debug, Args)]
pub(crate) struct EventChangeArguments {
    #[command(flatten)]
    which: EventFilterArguments,
    #[command(flatten)]
    options: BulkChangeOptions,
}

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

pub(super) async fn run(file: &Path, asked: EventChangeArguments, change: EventChange) -> crate::VerbResult {
    let EventChangeArguments { which, options } = asked;
    if let Some(code) = options.require_selection(!which.is_any(), "ids or a filter") {
        return Ok(code);
    }
    let config = Config::load(file)?;
    let mut session = open_session(&config).await?;
    let filter = which.filter(Some("parked"), options.max.saturating_add(1));
    let found = pg::events(&mut session.connection, &filter).await?;
    let now = session.clock.now();
    let plan = EventChangePlan { verb: verb(change), events: found, now };
    if let Confirmation::Exit(code) = options.confirm(&plan)? {
        return Ok(code);
    }
    let found = &plan.events;
    let mut transaction = session.connection.begin().await?;
    let by = EventChangeAuthor {
        user: &operator::name(),
        reason: options.note.as_deref(),
        filter: &serde_json::to_value(&filter)?,
    };
    let done = pg::change_events(&mut transaction, now, change, found, filter.state.as_deref(), by).await?;
    transaction.commit().await?;
    let busy = found.len().saturating_sub(done);
    output::note(&match change {
        EventChange::Retry => format!("{done} are due now"),
        EventChange::Discard => format!("discarded {done}"),
    });
    if busy > 0 {
        output::note(&format!("{busy} left alone: a relay holds them, or they have changed"));
    }
    if options.json {
        plan.print_json(false, json!({ "done": done, "left_alone": busy }))?;
    }
    session.close().await;
    Ok(ExitCode::SUCCESS)
}

impl EventChangePlan {
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
            let age = age(oldest.created_at, self.now);
            let events = counted(self.events.len(), "event");
            lines.push(format!("{} {events}, the oldest {age} old", self.verb));
        }
        for ((exchange, reason), count) in self.groups() {
            lines.push(format!("  {count:>6}  exchange {:?}  {reason}", safe(exchange)));
        }
        for event in self.events.iter().take(SAMPLES) {
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

    fn as_json(&self) -> Value {
        let samples: Vec<Value> = self
            .events
            .iter()
            .take(SAMPLES)
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
