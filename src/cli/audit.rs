//! `oncely audit list|verify`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use serde_json::json;

use super::output::{self, Times, safe};
use super::{audit_verify, since};
use crate::config::{Config, masked};
use crate::exit;
use crate::pg::{AuditFilter, AuditRow, audit_list};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Decisions, newest first; exit 1 where there is none
    List(List),
    /// Does the trail still hold what was sealed? Exit 1 where it does not
    Verify(audit_verify::Arguments),
}

#[derive(Debug, Args)]
struct List {
    /// Whose messages
    #[arg(long)]
    tenant: Option<String>,
    /// Of which consumer
    #[arg(long)]
    consumer: Option<String>,
    /// A key, exactly
    #[arg(long)]
    key: Option<String>,
    /// What became of them
    #[arg(long, value_parser = ["completed", "refused", "duplicate", "retried", "dead_lettered"])]
    outcome: Option<String>,
    /// A reason code, such as key_conflict
    #[arg(long)]
    reason: Option<String>,
    /// 15m, 2h, 7d, yesterday, 2026-09-01, 2026-09-01T10:00Z
    #[arg(long, value_parser = since::parse)]
    since: Option<DateTime<Utc>>,
    /// Only before this time (same formats as --since)
    #[arg(long, value_parser = since::parse)]
    until: Option<DateTime<Utc>>,
    /// At most this many rows
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    limit: i64,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(file: &Path, arguments: Arguments, times: Times) -> anyhow::Result<ExitCode> {
    let list = match arguments.verb {
        Verb::List(list) => list,
        Verb::Verify(arguments) => return audit_verify::run(file, arguments, times).await,
    };
    let settings = Config::load_postgres(file)?;
    let mut connection = settings
        .connect("oncely audit")
        .await
        .with_context(|| format!("cannot connect to {}", masked(&settings.url)))?;
    let filter = AuditFilter {
        tenant: list.tenant,
        consumer: list.consumer,
        key: list.key,
        outcome: list.outcome,
        reason: list.reason,
        since: list.since,
        until: list.until,
        limit: list.limit,
    };
    let rows = audit_list(&mut connection, &filter).await?;
    if list.json {
        output::print_json("oncely.audit/1", json!({ "rows": rows }))?;
    } else if rows.is_empty() {
        output::note("no decision matches");
    } else {
        output::print(&table(&rows, times))?;
    }
    Ok(if rows.is_empty() { ExitCode::from(exit::NO) } else { ExitCode::SUCCESS })
}

fn table(rows: &[AuditRow], times: Times) -> String {
    let mut table =
        output::table(["TIME", "TENANT", "CONSUMER", "KEY", "OUTCOME", "REASON", "ATTEMPT", "MS", "DETAIL"]);
    for row in rows {
        let milliseconds = row
            .duration_us
            .map(|micros| format!("{}.{}", micros / 1_000, micros % 1_000 / 100))
            .unwrap_or_default();
        table.add_row([
            times.show(row.occurred_at),
            safe(&row.tenant),
            safe(&row.consumer),
            safe(&row.key),
            row.outcome.clone(),
            row.reason.clone().unwrap_or_default(),
            if row.attempt > 0 { row.attempt.to_string() } else { String::new() },
            milliseconds,
            safe(row.detail.as_deref().unwrap_or_default()),
        ]);
    }
    table.to_string()
}
