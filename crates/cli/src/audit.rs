//! `oncely audit list|verify`.

use std::path::Path;

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use super::connection::connect;
use super::output::{List, Output, Row, Times};
use super::{audit_verify, completions, since};
use oncely_ops::trail::{TrailQuery, search_trail};
use oncely_postgres::{self as pg, AuditRow, TrailFilter};

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// Decisions, newest first; exit 1 if nothing matches
    List(AuditListArguments),
    /// Verify the trail against its seals; exit 1 if they differ
    Verify(audit_verify::AuditVerifyArguments),
}

#[derive(Debug, Args)]
pub(super) struct AuditListArguments {
    /// Tenant of the messages
    #[arg(long)]
    tenant: Option<String>,
    /// Consumer of the messages
    #[arg(long, add = ArgValueCompleter::new(completions::complete_consumers))]
    consumer: Option<String>,
    /// Exact key
    #[arg(long)]
    key: Option<String>,
    /// Outcome of the messages
    #[arg(long, value_parser = ["completed", "refused", "duplicate", "retried", "dead_lettered", "observed", "taken_over", "fenced"])]
    outcome: Option<String>,
    /// Reason code, such as key_conflict
    #[arg(long, add = ArgValueCompleter::new(completions::complete_reasons))]
    reason: Option<String>,
    /// Only from this time on: 15m, 2h, 7d, yesterday, 2026-09-01, 2026-09-01T10:00Z
    #[arg(long, value_parser = since::parse)]
    since: Option<DateTime<Utc>>,
    /// Only before this time (same formats as --since)
    #[arg(long, value_parser = since::parse)]
    until: Option<DateTime<Utc>>,
    /// At most this many rows
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    limit: i64,
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(file: &Path, verb: AuditCommand, times: Times) -> crate::VerbResult {
    let list = match verb {
        AuditCommand::List(list) => list,
        AuditCommand::Verify(arguments) => return audit_verify::run(file, arguments, times).await,
    };
    let mut connection = connect(file, "oncely audit").await?;
    pg::prefer_indexes(&mut connection).await?;
    let now = pg::read_database_time(&mut connection).await?;
    let query = TrailQuery {
        filter: TrailFilter {
            tenant: list.tenant,
            consumer: list.consumer,
            key: list.key,
            outcome: list.outcome,
            reason: list.reason,
            worker: None,
        },
        since: list.since.unwrap_or(DateTime::UNIX_EPOCH),
        until: list.until.unwrap_or(DateTime::<Utc>::MAX_UTC),
        after: None,
        limit: usize::try_from(list.limit)?,
    };
    // Without a time limit: readers of the list take it as complete.
    let trail_page = search_trail(&mut connection, now, &query, None).await?;
    let rows: Vec<AuditRow> = trail_page.rows.into_iter().map(|(_, row)| row).collect();
    List { schema: "oncely.audit/1", field: "rows", rows: &rows, none: "no decision matches" }
        .print(list.output, times)
}

impl Row for AuditRow {
    const SCHEMA: &'static str = "oncely.audit.row/1";
    const HEADS: &'static [&'static str] =
        &["TIME", "TENANT", "CONSUMER", "KEY", "OUTCOME", "REASON", "ATTEMPT", "MS", "DETAIL"];

    fn cells(&self, times: Times) -> Vec<String> {
        let milliseconds = self
            .duration_us
            .map(|micros| format!("{}.{}", micros / 1_000, micros % 1_000 / 100))
            .unwrap_or_default();
        vec![
            times.format_time(self.occurred_at),
            self.tenant.clone(),
            self.consumer.clone(),
            self.key.clone(),
            self.outcome.clone(),
            self.reason.clone().unwrap_or_default(),
            if self.attempt > 0 { self.attempt.to_string() } else { String::new() },
            milliseconds,
            self.detail.clone().unwrap_or_default(),
        ]
    }
}
