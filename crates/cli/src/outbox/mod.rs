//! `oncely outbox list|retry|discard`: events on their way to RabbitMQ.
//!
//! Changes show their plan first, need confirmation, and leave a row in `oncely.operator_actions`.

mod change;
mod list;

use std::path::Path;

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use uuid::Uuid;

use super::output::Times;
use super::since;
use oncely_postgres::{EventChange, EventFilter};

/// The schema of every verb's JSON object.
const SCHEMA: &str = "oncely.outbox/1";

#[derive(Debug, Subcommand)]
pub(super) enum OutboxCommand {
    /// Events, oldest first; exit 1 if nothing matches
    List(list::OutboxListArguments),
    /// Make parked events due now, as if they had never failed
    #[command(
        after_help = "An event that a relay holds is left unchanged. Exit 1: no event matches. 4: not confirmed."
    )]
    Retry(change::EventChangeArguments),
    /// Discard parked events: they are deleted; an ordering key continues with its next one
    #[command(
        after_help = "An event that a relay holds is left unchanged. Exit 1: no event matches. 4: not confirmed."
    )]
    Discard(change::EventChangeArguments),
}

pub(super) async fn run(file: &Path, verb: OutboxCommand, times: Times) -> crate::VerbResult {
    match verb {
        OutboxCommand::List(arguments) => list::run(file, arguments, times).await,
        OutboxCommand::Retry(arguments) => change::run(file, arguments, EventChange::Retry).await,
        OutboxCommand::Discard(arguments) => change::run(file, arguments, EventChange::Discard).await,
    }
}

/// Selection of events.
#[derive(Clone, Debug, Args)]
struct EventFilterArguments {
    /// Ids of events
    #[arg(value_name = "ID")]
    ids: Vec<Uuid>,
    /// Tenant of the events
    #[arg(long)]
    tenant: Option<String>,
    /// Exchange that the events are published to
    #[arg(long)]
    exchange: Option<String>,
    /// Exact routing key
    #[arg(long)]
    routing_key: Option<String>,
    /// Exact ordering key
    #[arg(long)]
    ordering_key: Option<String>,
    /// Reason why the event was not published, such as unroutable or exchange_missing
    #[arg(long)]
    reason: Option<String>,
    /// Only events written longer ago than this: 15m, 2h, 7d, or before this time: yesterday, 2026-09-01T10:00Z
    #[arg(long, value_parser = since::parse)]
    older_than: Option<DateTime<Utc>>,
    /// State of the events
    #[arg(long, value_parser = ["pending", "parked", "any"])]
    state: Option<String>,
}

impl EventFilterArguments {
    /// Returns whether no filter is set.
    fn is_unfiltered(&self) -> bool {
        let texts = [&self.tenant, &self.exchange, &self.routing_key, &self.ordering_key, &self.reason];
        self.ids.is_empty() && texts.iter().all(|text| text.is_none()) && self.older_than.is_none()
    }

    /// Converts the options to the filter of a query. `otherwise`: the state if neither a state nor an event is named.
    fn to_filter(&self, otherwise: Option<&str>, limit: i64) -> EventFilter {
        EventFilter {
            tenant: self.tenant.clone(),
            exchange: self.exchange.clone(),
            routing_key: self.routing_key.clone(),
            ordering_key: self.ordering_key.clone(),
            reason: self.reason.clone(),
            created_before: self.older_than,
            ids: (!self.ids.is_empty()).then(|| self.ids.clone()),
            state: match self.state.as_deref() {
                Some("any") => None,
                Some(state) => Some(state.to_owned()),
                None if !self.ids.is_empty() => None,
                None => otherwise.map(str::to_owned),
            },
            behind: None,
            limit,
        }
    }
}
