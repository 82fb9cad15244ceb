//! `oncely migrate [run|info|revert]`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde::Serialize;
use sqlx::{Connection as _, PgConnection};

use super::consent::agree;
use super::output::{self, List, Output, Row, Times};
use crate::config::{Config, masked};
use crate::exit;
use crate::pg::{MIGRATOR, MigrationState, migration_state};

#[derive(Debug, Args)]
#[command(
    after_help = "The same migrations that `sqlx migrate run` runs; needs only DATABASE_URL or [postgres] url."
)]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Verb {
    /// Apply what is not applied yet (the default)
    Run,
    /// Show what is applied; exit 1 where something is not
    Info(Info),
    /// Take the last migration back, and what it made with all its data
    Revert {
        /// Agree without being asked
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Clone, Copy, Debug, Args)]
struct Info {
    #[command(flatten)]
    output: Output,
}

/// A migration, of this program or of another one's.
#[derive(Debug, Default, Serialize)]
struct MigrationRow {
    version: i64,
    /// `applied`, `pending`, `changed` (applied from another file) or `unknown` (to this program).
    state: &'static str,
    description: String,
}

impl Row for MigrationRow {
    const SCHEMA: &'static str = "oncely.migrate.migration/1";
    const HEADS: &'static [&'static str] = &["VERSION", "STATE", "DESCRIPTION"];

    fn cells(&self, _: Times) -> Vec<String> {
        let state = match self.state {
            "changed" => "applied from another file",
            "unknown" => "unknown to this program",
            other => other,
        };
        vec![self.version.to_string(), state.to_owned(), self.description.clone()]
    }
}

pub(super) async fn run(file: &Path, arguments: Arguments, times: Times) -> anyhow::Result<ExitCode> {
    let settings = Config::load_postgres(file)?;
    let server = masked(&settings.url);
    let mut connection =
        settings.connect("oncely migrate").await.with_context(|| format!("cannot connect to {server}"))?;
    let before = migration_state(&mut connection).await?;
    if let Some(Verb::Info(info)) = arguments.verb {
        return show(&before, info.output, times);
    }
    if let Some(Verb::Revert { yes }) = arguments.verb {
        return revert(&mut connection, &before, &server, yes).await;
    }
    // Building an index on a big table takes longer than a statement may at work.
    sqlx::query("select set_config('statement_timeout', '0', false)").execute(&mut connection).await?;
    MIGRATOR.run(&mut connection).await.with_context(|| format!("migrating {server}"))?;
    connection.close().await?;
    match before.pending.len() {
        0 => output::note(&format!("{server}: nothing to do, all migrations are applied")),
        count => output::note(&format!("{server}: applied {count} migrations")),
    }
    Ok(ExitCode::SUCCESS)
}

fn show(state: &MigrationState, output: Output, times: Times) -> anyhow::Result<ExitCode> {
    let own = MIGRATOR.iter().filter(|m| m.migration_type.is_up_migration()).map(|migration| MigrationRow {
        version: migration.version,
        state: match migration.version {
            version if state.pending.iter().any(|(pending, _)| *pending == version) => "pending",
            version if state.changed.contains(&version) => "changed",
            _ => "applied",
        },
        description: migration.description.to_string(),
    });
    let unknown = state.unknown.iter().map(|version| MigrationRow {
        version: *version,
        state: "unknown",
        description: String::new(),
    });
    let rows: Vec<MigrationRow> = own.chain(unknown).collect();
    List { schema: "oncely.migrate/1", field: "migrations", rows: &rows, none: "there is no migration" }
        .print(output, times)?;
    let clean = state.pending.is_empty() && state.changed.is_empty();
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

/// Takes the last applied migration back.
async fn revert(
    connection: &mut PgConnection,
    state: &MigrationState,
    server: &str,
    yes: bool,
) -> anyhow::Result<ExitCode> {
    if !state.unknown.is_empty() {
        output::note(&format!(
            "{server}: migrations {:?} are unknown to this program: take them back with the one that made them",
            state.unknown
        ));
        return Ok(ExitCode::from(exit::REFUSED));
    }
    let applied: Vec<_> = MIGRATOR
        .iter()
        .filter(|m| m.migration_type.is_up_migration())
        .filter(|m| state.pending.iter().all(|(version, _)| *version != m.version))
        .collect();
    let Some(last) = applied.last() else {
        output::note(&format!("{server}: nothing to do, no migration is applied"));
        return Ok(ExitCode::from(exit::NO));
    };
    output::note(&format!(
        "{server}: takes back {} ({}): what it made is dropped, with all its data; stop workers and relays before",
        last.version, last.description
    ));
    if !agree(yes, &last.version.to_string())? {
        return Ok(ExitCode::from(exit::REFUSED));
    }
    let target = applied.iter().rev().nth(1).map_or(0, |before| before.version);
    sqlx::query("select set_config('statement_timeout', '0', false)").execute(&mut *connection).await?;
    MIGRATOR.undo(&mut *connection, target).await.with_context(|| format!("taking back {}", last.version))?;
    output::note(&format!("{server}: {} is taken back", last.version));
    Ok(ExitCode::SUCCESS)
}
