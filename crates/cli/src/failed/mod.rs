//! `oncely failed groups|list|show|requeue|discard|park|sweep`: dead letters.
//!
//! Lists come from PostgreSQL, since reading from a dead-letter queue can empty it. Changes show their plan first, need confirmation, and
//! leave a row in `oncely.operator_actions`.

mod groups;
mod list;
mod operation;
mod park;
mod plan;
mod show;
mod sweep;

use std::path::Path;

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use sqlx::PgConnection;

use super::connection::connect;
use super::output::Times;
use super::{completions, since};
use oncely_postgres::{self as pg, LetterFilter};

/// The schema of every verb's JSON object.
const SCHEMA: &str = "oncely.failed/1";

#[derive(Debug, Subcommand)]
pub(super) enum FailedCommand {
    /// Group failures of the same kind, with how many came back after a requeue; exit 1 if nothing matches
    Groups(groups::LetterGroupsArguments),
    /// Dead letters, newest first; exit 1 if nothing matches
    List(list::LetterListArguments),
    /// Show all facts of one dead letter
    Show(show::LetterShowArguments),
    /// Publish dead letters to their queue again, and make their keys runnable
    Requeue(operation::RequeueArguments),
    /// Discard dead letters: they leave their queue
    Discard(operation::DiscardArguments),
    /// Park a message: it becomes a dead letter without a run
    Park(park::ParkArguments),
    /// Remove requeued and discarded messages from the dead-letter queues
    Sweep(sweep::SweepArguments),
}

pub(super) async fn run(file: &Path, verb: FailedCommand, times: Times) -> crate::VerbResult {
    match verb {
        FailedCommand::Groups(arguments) => groups::run(file, arguments, times).await,
        FailedCommand::List(arguments) => list::run(file, arguments, times).await,
        FailedCommand::Show(arguments) => show::run(file, arguments, times).await,
        FailedCommand::Requeue(arguments) => operation::requeue(file, arguments).await,
        FailedCommand::Discard(arguments) => operation::discard(file, arguments).await,
        FailedCommand::Park(arguments) => park::run(file, arguments, times).await,
        FailedCommand::Sweep(arguments) => sweep::run(file, arguments).await,
    }
}

/// Selection of dead letters.
#[derive(Clone, Debug, Args)]
struct LetterFilterArguments {
    /// Tenant of the messages
    #[arg(long)]
    tenant: Option<String>,
    /// Consumer of the messages
    #[arg(long, add = ArgValueCompleter::new(completions::complete_consumers))]
    consumer: Option<String>,
    /// Queue that the messages came from
    #[arg(long, add = ArgValueCompleter::new(completions::complete_queues))]
    queue: Option<String>,
    /// Reason code, such as attempts_exhausted
    #[arg(long, add = ArgValueCompleter::new(completions::complete_reasons))]
    reason: Option<String>,
    /// Group, from `oncely failed groups`
    #[arg(long)]
    group: Option<String>,
    /// Exact key
    #[arg(long)]
    key: Option<String>,
    /// Only from this time on: 15m, 2h, 7d, yesterday, 2026-09-01, 2026-09-01T10:00Z
    #[arg(long, value_parser = since::parse)]
    since: Option<DateTime<Utc>>,
    /// Only before this time (same formats as --since)
    #[arg(long, value_parser = since::parse)]
    until: Option<DateTime<Utc>>,
    /// At most this many rows
    #[arg(long, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    limit: Option<i64>,
}

impl LetterFilterArguments {
    /// Returns whether no filter is set.
    fn is_unfiltered(&self) -> bool {
        let texts = [&self.tenant, &self.consumer, &self.queue, &self.reason, &self.group, &self.key];
        texts.iter().all(|text| text.is_none()) && self.since.is_none() && self.until.is_none()
    }

    /// Returns whether a filter selects letters by their failure or key, and not only by origin and time.
    fn names_letters(&self) -> bool {
        self.reason.is_some() || self.group.is_some() || self.key.is_some()
    }

    /// Converts the options to the filter of a query.
    fn into_filter(self, default_limit: i64) -> LetterFilter {
        LetterFilter {
            tenant: self.tenant,
            consumer: self.consumer,
            queue: self.queue,
            reason: self.reason,
            group: self.group,
            key: self.key,
            since: self.since,
            until: self.until,
            ids: None,
            states: None,
            before: None,
            limit: self.limit.unwrap_or(default_limit),
        }
    }
}

/// Opens a connection for a verb that only reads.
async fn connect_to_read(file: &Path) -> anyhow::Result<PgConnection> {
    let mut connection = connect(file, "oncely failed").await?;
    pg::prefer_indexes(&mut connection).await?;
    Ok(connection)
}
