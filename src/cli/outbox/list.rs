//! `oncely outbox list`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use super::super::output::{self, Times, safe};
use super::{SCHEMA, Which};
use crate::config::{Config, masked};
use crate::exit;
use crate::pg::{EventRow, events};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    which: Which,
    /// At most this many rows
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    limit: i64,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(file: &Path, arguments: Arguments, times: Times) -> anyhow::Result<ExitCode> {
    let settings = Config::load_postgres(file)?;
    let connected = settings.connect("oncely outbox").await;
    let mut connection = connected.with_context(|| format!("cannot connect to {}", masked(&settings.url)))?;
    let rows = events(&mut connection, &arguments.which.filter(None, arguments.limit)).await?;
    if arguments.json {
        output::print_json(SCHEMA, json!({ "events": rows }))?;
    } else if rows.is_empty() {
        output::note("no event matches");
    } else {
        output::print(&table(&rows, times))?;
    }
    Ok(if rows.is_empty() { ExitCode::from(exit::NO) } else { ExitCode::SUCCESS })
}

fn table(rows: &[EventRow], times: Times) -> String {
    let mut table = output::table([
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
    ]);
    for row in rows {
        table.add_row([
            row.id.to_string(),
            times.show(row.created_at),
            safe(&row.tenant),
            safe(&row.exchange),
            safe(&row.routing_key),
            safe(row.ordering_key.as_deref().unwrap_or_default()),
            row.state.clone(),
            row.attempts.to_string(),
            row.reason.clone().unwrap_or_default(),
            if row.state == "pending" { times.show(row.available_at) } else { String::new() },
            safe(row.last_error.as_deref().unwrap_or_default()),
        ]);
    }
    table.to_string()
}
