//! `oncely migrate [run|info|revert]`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use sqlx::{Connection as _, PgConnection};

use super::consent::agree;
use super::output;
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
    Info,
    /// Take the last migration back, and what it made with all its data
    Revert {
        /// Agree without being asked
        #[arg(long)]
        yes: bool,
    },
}

pub(super) async fn run(file: &Path, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let settings = Config::load_postgres(file)?;
    let server = masked(&settings.url);
    let mut connection =
        settings.connect("oncely migrate").await.with_context(|| format!("cannot connect to {server}"))?;
    let before = migration_state(&mut connection).await?;
    if let Some(Verb::Info) = arguments.verb {
        let mut table = output::table(["VERSION", "STATE", "DESCRIPTION"]);
        for migration in MIGRATOR.iter().filter(|m| m.migration_type.is_up_migration()) {
            let pending = before.pending.iter().any(|(version, _)| *version == migration.version);
            let changed = before.changed.contains(&migration.version);
            let state = if pending {
                "pending"
            } else if changed {
                "applied from another file"
            } else {
                "applied"
            };
            table.add_row([&migration.version.to_string(), state, &migration.description]);
        }
        for version in &before.unknown {
            table.add_row([&version.to_string(), "unknown to this program", ""]);
        }
        output::print(&table.to_string())?;
        let clean = before.pending.is_empty() && before.changed.is_empty();
        return Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) });
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
