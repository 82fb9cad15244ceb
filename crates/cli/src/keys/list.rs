//! `oncely keys list`.

use std::path::Path;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use serde_json::{Value, json};

use super::super::connection::connect;
use super::super::output::{self, List, Output, Row, Times};
use super::super::{completions, since};
use oncely_core::decide::KeyStatus;
use oncely_ops::exit;
use oncely_postgres::{self as pg, KeyRow, KeyWalk};

#[derive(Debug, Args)]
pub(crate) struct KeyListArguments {
    /// Tenant of the keys
    #[arg(long)]
    tenant: Option<String>,
    /// Consumer of the keys
    #[arg(long, add = ArgValueCompleter::new(completions::complete_consumers))]
    consumer: Option<String>,
    /// Status of the keys; requires --consumer
    #[arg(long)]
    status: Option<KeyStatusArgument>,
    /// Only from this time on: 15m, 2h, 7d, yesterday, 2026-09-01, 2026-09-01T10:00Z; requires --status
    #[arg(long, value_parser = since::parse)]
    since: Option<DateTime<Utc>>,
    /// Only before this time (same formats as --since)
    #[arg(long, value_parser = since::parse)]
    until: Option<DateTime<Utc>>,
    /// At most this many rows
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
    limit: i64,
    /// Place printed by the previous page, where this page begins
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KeyStatusArgument {
    /// Took effect
    Completed,
    /// Given up
    Failed,
    /// Failed so far, or running
    InProgress,
}

pub(super) async fn run(file: &Path, arguments: KeyListArguments, times: Times) -> crate::VerbResult {
    let walk = match choose_walk(&arguments) {
        Ok(walk) => walk,
        Err(advice) => {
            output::print_note(advice);
            return Ok(ExitCode::from(exit::USAGE));
        }
    };
    let mut connection = connect(file, "oncely keys").await?;
    let rows = pg::list_keys(&mut connection, &walk, arguments.limit).await?;
    List { schema: "oncely.keys/1", field: "keys", rows: &rows, none: "no key matches" }.print_page(
        arguments.output,
        times,
        arguments.limit,
        |row| last_position(&walk, row),
    )
}

/// Chooses the walk that the options request.
///
/// # Errors
/// If no index serves it: the options to add or remove.
fn choose_walk(arguments: &KeyListArguments) -> Result<KeyWalk, &'static str> {
    let KeyListArguments { tenant, consumer, status, since, until, after, .. } = arguments;
    let after = after.as_deref();
    match (tenant, consumer, status) {
        (None, None, None) => Err("no filter: name a --tenant, or a --consumer with a --status"),
        (None, Some(_), None) => Err("no index serves that: add --status, or a --tenant"),
        (_, None, Some(_)) => Err("no index serves that: with --status name a --consumer, too"),
        (Some(_), _, None) if since.is_some() || until.is_some() => {
            Err("no index serves that: with --since or --until name a --consumer and a --status")
        }
        (Some(_), Some(_), Some(KeyStatusArgument::Completed)) => Err(
            "no index serves that: leave --tenant or --status out, or ask the trail: oncely audit list --tenant … --outcome completed",
        ),
        (Some(tenant), consumer, None) => Ok(KeyWalk::ByIdentity {
            tenant: tenant.clone(),
            consumer: consumer.clone(),
            after: after.map(|place| serde_json::from_str(place).map_err(|_| AFTER_ADVICE)).transpose()?,
        }),
        (tenant, Some(consumer), Some(status)) => Ok(KeyWalk::ByTime {
            consumer: consumer.clone(),
            status: match status {
                KeyStatusArgument::Completed => KeyStatus::Completed,
                KeyStatusArgument::Failed => KeyStatus::Failed,
                KeyStatusArgument::InProgress => KeyStatus::InProgress,
            },
            tenant: tenant.clone(),
            since: *since,
            until: *until,
            after: after.map(|place| serde_json::from_str(place).map_err(|_| AFTER_ADVICE)).transpose()?,
        }),
    }
}

const AFTER_ADVICE: &str = "--after takes the place printed by the previous page of the same query";

/// Returns the position of a page's last row in the walk, as JSON.
fn last_position(walk: &KeyWalk, last: &KeyRow) -> Value {
    match walk {
        KeyWalk::ByIdentity { .. } => json!([last.consumer, last.key]),
        KeyWalk::ByTime { status: KeyStatus::InProgress, .. } => {
            json!([last.created_at, last.tenant, last.key])
        }
        KeyWalk::ByTime { .. } => json!([last.completed_at, last.tenant, last.key]),
    }
}

impl Row for KeyRow {
    const SCHEMA: &'static str = "oncely.keys.key/1";
    const HEADS: &'static [&'static str] =
        &["TENANT", "CONSUMER", "KEY", "STATUS", "ATTEMPTS", "CREATED", "COMPLETED", "REASON", "ERROR"];

    fn cells(&self, times: Times) -> Vec<String> {
        vec![
            self.tenant.clone(),
            self.consumer.clone(),
            self.key.clone(),
            self.status.clone(),
            self.attempts.to_string(),
            times.format_time(self.created_at),
            self.completed_at.map(|at| times.format_time(at)).unwrap_or_default(),
            self.reason.clone().unwrap_or_default(),
            self.last_error.clone().unwrap_or_default(),
        ]
    }
}
