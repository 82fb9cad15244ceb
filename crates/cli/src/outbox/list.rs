//! `oncely outbox list`.

use std::path::Path;

use clap::Args;

use super::super::connection::connect;
use super::super::output::{List, Output, Row, Times};
use super::{EventFilterArguments, SCHEMA};
use oncely_postgres::{EventRow, list_events};

#[derive(Debug, Args)]
pub(crate) struct OutboxListArguments {
    #[command(flatten)]
    selection: EventFilterArguments,
    /// At most this many rows
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    limit: i64,
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(file: &Path, arguments: OutboxListArguments, times: Times) -> crate::VerbResult {
    let mut connection = connect(file, "oncely outbox").await?;
    let rows = list_events(&mut connection, &arguments.selection.to_filter(None, arguments.limit)).await?;
    List { schema: SCHEMA, field: "events", rows: &rows, none: "no event matches" }
        .print(arguments.output, times)
}

impl Row for EventRow {
    const SCHEMA: &'static str = "oncely.outbox.event/1";
    const HEADS: &'static [&'static str] = &[
        "ID",
        "WRITTEN",
        "TENANT",
        "EXCHANGE",
        "ROUTING KEY",
        "ORDERING KEY",
        "STATE",
        "ATTEMPTS",
        "REASON",
        "NEXT TRY",
        "ERROR",
    ];

    fn cells(&self, times: Times) -> Vec<String> {
        vec![
            self.id.to_string(),
            times.format_time(self.created_at),
            self.tenant.clone(),
            self.exchange.clone(),
            self.routing_key.clone(),
            self.ordering_key.clone().unwrap_or_default(),
            self.state.clone(),
            self.attempts.to_string(),
            self.reason.clone().unwrap_or_default(),
            if self.state == "pending" { times.format_time(self.available_at) } else { String::new() },
            self.last_error.clone().unwrap_or_default(),
        ]
    }
}
