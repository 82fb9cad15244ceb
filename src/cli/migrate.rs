//! `oncely migrate [run|plan|info|revert]`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde::Serialize;
use sqlx::{Connection as _, PgConnection};

use super::consent::agree;
use super::migration_plan;
use super::migration_wait::Patient;
use super::output::{self, List, Output, Row, Times};
use crate::config::Config;
use crate::exit;
use crate::pg::{MIGRATOR, MigrationState, PgSettings, migration_state, server_encoding, unfit_encoding};

#[derive(Debug, Args)]
#[command(
    after_help = "The same migrations that `sqlx migrate run` runs; needs only DATABASE_URL or [postgres] url. A migration that \
                  does not get a lock within a second lets everybody by and tries again. Exit 1: one got no lock within --wait. \
                  4: the database was migrated by another program's files."
)]
pub(super) struct Arguments {
    #[command(flatten)]
    patience: Patience,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Verb {
    /// Apply what is not applied yet (the default)
    Run(Patience),
    /// What the pending migrations lock, and for how long; changes nothing
    #[command(
        after_help = "Exit 0: nothing is pending. 1: something is, and nobody waits for longer than a second. 5: somebody does."
    )]
    Plan(migration_plan::Arguments),
    /// Show what is applied; exit 1 where something is not
    Info(Info),
    /// Take the last migration back, and what it made with all its data
    Revert {
        /// Agree without being asked
        #[arg(long)]
        yes: bool,
    },
}

/// Without `--wait`, for how long a migration tries to get its locks.
const WAIT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, Args)]
struct Patience {
    /// How long each migration tries to get its locks, such as 5m [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,
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
    let Arguments { patience, verb } = arguments;
    if patience.wait.is_some() && !matches!(verb, None | Some(Verb::Run(_))) {
        output::note("--wait is for `oncely migrate` and `oncely migrate run`");
        return Ok(ExitCode::from(exit::USAGE));
    }
    let settings = Config::load_postgres(file)?;
    let server = settings.shown();
    let mut connection =
        settings.connect("oncely migrate").await.with_context(|| format!("cannot connect to {server}"))?;
    if !matches!(verb, Some(Verb::Info(_) | Verb::Revert { .. }))
        && let Some(why) = unfit_encoding(&server_encoding(&mut connection).await?)
    {
        output::note(&format!("{server}: {why}"));
        return Ok(ExitCode::from(exit::CONFIG));
    }
    let before = migration_state(&mut connection).await?;
    match verb {
        Some(Verb::Info(info)) => return show(&before, info.output, times),
        Some(Verb::Revert { yes }) => return revert(&mut connection, &before, &server, yes).await,
        None | Some(Verb::Plan(_) | Verb::Run(_)) => {}
    }
    if let Some(why) = refusal(&before) {
        output::note(&format!("{server}: {why}"));
        return Ok(ExitCode::from(exit::REFUSED));
    }
    if let Some(Verb::Plan(plan)) = verb {
        return migration_plan::run(&mut connection, &before, plan, times).await;
    }
    if before.pending.is_empty() {
        output::note(&format!("{server}: {}", nothing_to_do(&before)));
        return Ok(ExitCode::SUCCESS);
    }
    let wait = match verb {
        Some(Verb::Run(own)) => own.wait.or(patience.wait),
        _ => patience.wait,
    };
    apply(&settings, connection, &before, wait.unwrap_or(WAIT)).await
}

/// Why this program applies nothing here.
fn refusal(state: &MigrationState) -> Option<String> {
    if !state.changed.is_empty() {
        return Some(format!(
            "migrations {:?} were applied from other files than this program's: use the program that made this database, or make it anew",
            state.changed
        ));
    }
    (!state.unknown.is_empty() && !state.pending.is_empty()).then(|| {
        format!(
            "a newer Oncely has migrated this database ({:?} are unknown here), and some of this program's migrations are not applied: \
             migrate with that one",
            state.unknown
        )
    })
}

fn nothing_to_do(state: &MigrationState) -> String {
    match state.unknown.as_slice() {
        [] => "nothing to do, all migrations are applied".to_owned(),
        newer => format!("nothing to do, a newer Oncely has migrated it ({newer:?} are unknown here)"),
    }
}

async fn apply(
    settings: &PgSettings,
    mut connection: PgConnection,
    before: &MigrationState,
    wait: Duration,
) -> anyhow::Result<ExitCode> {
    let server = settings.shown();
    let migrating = || format!("migrating {server}");
    // Building an index on a big table takes longer than a statement may at work.
    sqlx::query("select set_config('statement_timeout', '0', false)").execute(&mut connection).await?;
    let mut watcher = settings.connect("oncely migrate watch").await.with_context(migrating)?;
    let mut patient = Patient { connection: &mut connection, watcher: &mut watcher, wait };
    for (version, description) in &before.pending {
        patient.apply(*version, description).await.with_context(migrating)?;
    }
    watcher.close().await?;
    connection.close().await?;
    output::note(&format!("{server}: applied {} migrations", before.pending.len()));
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
