//! `oncely failed groups|list|show|requeue|discard|park|sweep`: dead letters.
//!
//! Lists come from PostgreSQL: looking into a dead-letter queue can empty it. Changes show their plan first, need consent,
//! and leave a row in `oncely.operator_actions`.

mod groups;
mod list;
mod operation;
mod park;
mod plan;
mod show;
mod sweep;

use std::path::Path;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use sqlx::PgConnection;

use super::connection::connect;
use super::output::Times;
use super::{completions, since};
use crate::pg::{self, LetterFilter};

/// The schema of every verb's object.
const SCHEMA: &str = "oncely.failed/1";

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// What failed alike, and what came back after a requeue; exit 1 where nothing is known
    Groups(groups::Arguments),
    /// Dead letters, newest first; exit 1 where there is none
    List(list::Arguments),
    /// Everything about one dead letter
    Show(show::Arguments),
    /// Publish dead letters to their queue again, and make their keys runnable
    Requeue(operation::RequeueArguments),
    /// Give dead letters up: they leave their queue
    Discard(operation::DiscardArguments),
    /// Set a message aside by hand: it becomes a dead letter without having run
    Park(park::Arguments),
    /// Take what was requeued or discarded out of the dead-letter queues
    Sweep(sweep::Arguments),
}

pub(super) async fn run(file: &Path, arguments: Arguments, times: Times) -> anyhow::Result<ExitCode> {
    match arguments.verb {
        Verb::Groups(arguments) => groups::run(file, arguments, times).await,
        Verb::List(arguments) => list::run(file, arguments, times).await,
        Verb::Show(arguments) => show::run(file, arguments, times).await,
        Verb::Requeue(arguments) => operation::requeue(file, arguments).await,
        Verb::Discard(arguments) => operation::discard(file, arguments).await,
        Verb::Park(arguments) => park::run(file, arguments, times).await,
        Verb::Sweep(arguments) => sweep::run(file, arguments).await,
    }
}

/// Which dead letters.
#[derive(Clone, Debug, Args)]
struct Which {
    /// Whose messages
    #[arg(long)]
    tenant: Option<String>,
    /// Of which consumer
    #[arg(long, add = ArgValueCompleter::new(completions::consumers))]
    consumer: Option<String>,
    /// The queue that they came from
    #[arg(long, add = ArgValueCompleter::new(completions::queues))]
    queue: Option<String>,
    /// A reason code, such as attempts_exhausted
    #[arg(long, add = ArgValueCompleter::new(completions::reasons))]
    reason: Option<String>,
    /// A group, as `oncely failed groups` shows it
    #[arg(long)]
    group: Option<String>,
    /// A key, exactly
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

impl Which {
    /// Nothing is asked for.
    fn is_any(&self) -> bool {
        let texts = [&self.tenant, &self.consumer, &self.queue, &self.reason, &self.group, &self.key];
        texts.iter().all(|text| text.is_none()) && self.since.is_none() && self.until.is_none()
    }

    /// Says what the letters are, and not only where they came from and when.
    fn tells_which(&self) -> bool {
        self.reason.is_some() || self.group.is_some() || self.key.is_some()
    }

    fn filter(self, default_limit: i64) -> LetterFilter {
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

/// A connection for a verb that only reads.
async fn reader(file: &Path) -> anyhow::Result<PgConnection> {
    let mut connection = connect(file, "oncely failed").await?;
    pg::read_by_index(&mut connection).await?;
    Ok(connection)
}
