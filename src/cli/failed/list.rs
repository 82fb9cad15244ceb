//! `oncely failed list`.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use uuid::Uuid;

use super::super::output::{self, Times, safe};
use super::{SCHEMA, Which, reader};
use crate::exit;
use crate::pg::{LetterRow, letters};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Ids of dead letters
    ids: Vec<Uuid>,
    #[command(flatten)]
    which: Which,
    /// In which state; by default what waits: waiting and requeueing
    #[arg(long, value_parser = ["waiting", "requeueing", "requeued", "discarded", "any"])]
    state: Option<String>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(file: &Path, arguments: Arguments, times: Times) -> anyhow::Result<ExitCode> {
    let mut filter = arguments.which.filter(50);
    filter.states = match arguments.state.as_deref() {
        Some("any") => None,
        Some(state) => Some(vec![state.to_owned()]),
        // Who names letters wants to see them.
        None if !arguments.ids.is_empty() => None,
        None => Some(vec!["waiting".to_owned(), "requeueing".to_owned()]),
    };
    filter.ids = (!arguments.ids.is_empty()).then_some(arguments.ids);
    let mut connection = reader(file).await?;
    let rows = letters(&mut connection, &filter).await?;
    if arguments.json {
        output::print_json(SCHEMA, json!({ "letters": rows }))?;
    } else if rows.is_empty() {
        output::note("no dead letter matches");
    } else {
        output::print(&table(&rows, times))?;
    }
    Ok(if rows.is_empty() { ExitCode::from(exit::NO) } else { ExitCode::SUCCESS })
}

fn table(rows: &[LetterRow], times: Times) -> String {
    let mut table =
        output::table(["ID", "TIME", "TENANT", "CONSUMER", "KEY", "REASON", "STATE", "TIMES", "DETAIL"]);
    for row in rows {
        table.add_row([
            row.id.to_string(),
            times.show(row.dead_lettered_at),
            safe(&row.tenant),
            safe(&row.consumer),
            safe(&row.key),
            row.reason.clone(),
            row.state.clone(),
            row.times.to_string(),
            safe(row.detail.as_deref().unwrap_or_default()),
        ]);
    }
    table.to_string()
}
