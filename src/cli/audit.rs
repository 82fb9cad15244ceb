//! `oncely audit list|verify`.

use std::path::Path;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use super::connection::connect;
use super::output::{List, Output, Row, Times};
use super::{audit_verify, completions, since};
use crate::pg::{self, AuditRow, TrailFilter};
use crate::trail::{Look, look};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Decisions, newest first; exit 1 where there is none
    List(Listing),
    /// Does the trail still hold what was sealed? Exit 1 where it does not
    Verify(audit_verify::Arguments),
}

#[derive(Debug, Args)]
struct Listing {
    /// Whose messages
    #[arg(long)]
    tenant: Option<String>,
    /// Of which consumer
    #[arg(long, add = ArgValueCompleter::new(completions::consumers))]
    consumer: Option<String>,
    /// A key, exactly
    #[arg(long)]
    key: Option<String>,
    /// What became of them
    #[arg(long, value_parser = ["completed", "refused", "duplicate", "retried", "dead_lettered", "observed", "taken_over", "fenced"])]
    outcome: Option<String>,
    /// A reason code, such as key_conflict
    #[arg(long, add = ArgValueCompleter::new(completions::reasons))]
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
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(file: &Path, arguments: Arguments, times: Times) -> anyhow::Result<ExitCode> {
    let list = match arguments.verb {
        Verb::List(list) => list,
        Verb::Verify(arguments) => return audit_verify::run(file, arguments, times).await,
    };
    let mut connection = connect(file, "oncely audit").await?;
    pg::read_by_index(&mut connection).await?;
    let now = pg::database_time(&mut connection).await?;
    let wanted = Look {
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
    // However long that takes: whoever reads the list takes it for all there is.
    let found = look(&mut connection, now, &wanted, None).await?;
    let rows: Vec<AuditRow> = found.rows.into_iter().map(|(_, row)| row).collect();
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
            times.show(self.occurred_at),
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
