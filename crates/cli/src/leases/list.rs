//! `oncely leases list`.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use serde_json::{Value, json};

use super::super::completions;
use super::super::connection::connect;
use super::super::output::{self, List, Output, Row, Times};
use oncely_ops::exit;
use oncely_postgres::{self as pg, HeldLease, LeaseFilter};

#[derive(Debug, Args)]
pub(crate) struct LeaseListArguments {
    /// Consumer of the keys
    #[arg(long, add = ArgValueCompleter::new(completions::complete_consumers))]
    consumer: Option<String>,
    /// Tenant of the keys
    #[arg(long)]
    tenant: Option<String>,
    /// Only keys with an expired lease
    #[arg(long)]
    over: bool,
    /// At most this many rows
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
    limit: i64,
    /// Place printed by the previous page, where this page begins
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(file: &Path, arguments: LeaseListArguments, times: Times) -> crate::VerbResult {
    let Ok(after) = arguments.after.as_deref().map(serde_json::from_str).transpose() else {
        output::print_note("--after takes the place printed by the previous page of the same query");
        return Ok(ExitCode::from(exit::USAGE));
    };
    let mut connection = connect(file, "oncely leases").await?;
    pg::prefer_indexes(&mut connection).await?;
    let filter = LeaseFilter {
        tenant: arguments.tenant,
        consumer: arguments.consumer,
        key: None,
        is_over: arguments.over,
        after,
        limit: arguments.limit,
    };
    let now = pg::read_database_time(&mut connection).await?;
    let rows = pg::list_held_leases(&mut connection, &filter, now).await?;
    List { schema: "oncely.leases/1", field: "leases", rows: &rows, none: "no lease matches" }.print_page(
        arguments.output,
        times,
        arguments.limit,
        last_position,
    )
}

/// Returns the position of a page's last row, as JSON.
fn last_position(last: &HeldLease) -> Value {
    json!([last.consumer, last.token, last.tenant, last.key])
}

impl Row for HeldLease {
    const SCHEMA: &'static str = "oncely.leases.lease/1";
    const HEADS: &'static [&'static str] =
        &["TENANT", "CONSUMER", "KEY", "HOLDER", "TOKEN", "SINCE", "LEASE", "CRASHES", "STEPS"];

    fn cells(&self, times: Times) -> Vec<String> {
        vec![
            self.tenant.clone(),
            self.consumer.clone(),
            self.key.clone(),
            self.owner.clone(),
            self.token.to_string(),
            times.format_time(self.since),
            super::format_remaining(self),
            self.crash_attempts.to_string(),
            self.steps.as_deref().map(super::format_steps).unwrap_or_default(),
        ]
    }
}
