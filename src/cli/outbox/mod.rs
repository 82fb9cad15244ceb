//! `oncely outbox list|retry|discard`: events on their way to RabbitMQ.
//!
//! Changes show their plan first, need consent, and leave a row in `oncely.operator_actions`.

mod change;
mod list;

use std::path::Path;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use uuid::Uuid;

use super::output::Times;
use super::since;
use crate::pg::{EventChange, EventFilter};

/// The schema of every verb's object.
const SCHEMA: &str = "oncely.outbox/1";

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Events, oldest first; exit 1 where there is none
    List(list::Arguments),
    /// Make parked events due now, as if they had never failed
    #[command(
        after_help = "An event that a relay holds at the moment is left alone. Exit 1: none matches. 4: nobody agreed."
    )]
    Retry(change::Arguments),
    /// Give parked events up: they are deleted; an ordering key goes on with its next one
    #[command(
        after_help = "An event that a relay holds at the moment is left alone. Exit 1: none matches. 4: nobody agreed."
    )]
    Discard(change::Arguments),
}

pub(super) async fn run(file: &Path, arguments: Arguments, times: Times) -> anyhow::Result<ExitCode> {
    match arguments.verb {
        Verb::List(arguments) => list::run(file, arguments, times).await,
        Verb::Retry(arguments) => change::run(file, arguments, EventChange::Retry).await,
        Verb::Discard(arguments) => change::run(file, arguments, EventChange::Discard).await,
    }
}

/// Which events.
#[derive(Clone, Debug, Args)]
struct Which {
    /// Ids of events
    #[arg(value_name = "ID")]
    ids: Vec<Uuid>,
    /// Whose events
    #[arg(long)]
    tenant: Option<String>,
    /// The exchange that they are for
    #[arg(long)]
    exchange: Option<String>,
    /// Their routing key, exactly
    #[arg(long)]
    routing_key: Option<String>,
    /// Their ordering key, exactly
    #[arg(long)]
    ordering_key: Option<String>,
    /// Why it was not published, such as unroutable or exchange_missing
    #[arg(long)]
    reason: Option<String>,
    /// Written longer ago than this: 15m, 2h, 7d, or before this time: yesterday, 2026-09-01T10:00Z
    #[arg(long, value_parser = since::parse)]
    older_than: Option<DateTime<Utc>>,
    /// In which state
    #[arg(long, value_parser = ["pending", "parked", "any"])]
    state: Option<String>,
}

impl Which {
    /// Nothing is asked for.
    fn is_any(&self) -> bool {
        let texts = [&self.tenant, &self.exchange, &self.routing_key, &self.ordering_key, &self.reason];
        self.ids.is_empty() && texts.iter().all(|text| text.is_none()) && self.older_than.is_none()
    }

    /// `otherwise`: the state where none is named, and no event either.
    fn filter(&self, otherwise: Option<&str>, limit: i64) -> EventFilter {
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
