//! `oncely migrate [run|plan|info|revert]`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde::Serialize;
use sqlx::{Connection as _, PgConnection};

use super::confirmation::ask_confirmation;
use super::migration_plan;
use super::migration_wait::MigrationSessions;
use super::output::{self, List, Output, Row, Times};
use oncely_config::Config;
use oncely_ops::exit;
use oncely_postgres::{
    DistributeError, Distribution, MIGRATOR, MigrationState, PgSettings, describe_unfit_encoding, distribute,
    read_migration_state, read_server_encoding,
};

#[derive(Debug, Args)]
#[command(
    after_help = "Applies the same migrations as `sqlx migrate run`; needs only DATABASE_URL or [postgres] url. A \
                  migration that does not get a lock within a second lets the waiting sessions run and tries again. \
                  Exit 1: a migration got no lock within --wait. 4: the database was migrated by another program's \
                  files."
)]
pub(super) struct MigrateArguments {
    #[command(flatten)]
    lock_wait: LockWaitArguments,
    #[command(flatten)]
    citus: CitusArguments,
    #[command(subcommand)]
    verb: Option<MigrateCommand>,
}

#[derive(Clone, Debug, Args)]
struct CitusArguments {
    /// Then spread the tables over the nodes of a Citus cluster, by tenant; postgres.url is that of its coordinator
    #[arg(long)]
    citus: bool,
    /// Number of parts of each table with tenants; several for each node that there may ever be
    #[arg(long, value_name = "NUMBER", default_value_t = 32, requires = "citus", value_parser = clap::value_parser!(u32).range(1..=4096))]
    shards: u32,
    /// A table of yours that is distributed by tenant (text COLLATE "C"): its rows and a tenant's keys are on one node then
    #[arg(long, value_name = "TABLE", requires = "citus")]
    colocate_with: Option<String>,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum MigrateCommand {
    /// Apply the pending migrations (the default)
    Run(LockWaitArguments),
    /// Show the locks of the pending migrations and their duration; changes nothing
    #[command(
        after_help = "Exit 0: nothing is pending. 1: migrations are pending, and no session waits for longer than a \
                      second. 5: sessions do."
    )]
    Plan(migration_plan::MigrationPlanArguments),
    /// Show which migrations are applied; exit 1 if one is not
    Info(MigrationInfoArguments),
    /// Revert the last migration: drop the objects that it made, with all their data
    Revert {
        /// Confirm without a prompt
        #[arg(long)]
        yes: bool,
    },
}

/// Default of `--wait`.
const DEFAULT_WAIT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, Args)]
struct LockWaitArguments {
    /// Time for each migration to get its locks, such as 5m [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Args)]
struct MigrationInfoArguments {
    #[command(flatten)]
    output: Output,
}

/// A migration of this program or of another one.
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

pub(super) async fn run(file: &Path, arguments: MigrateArguments, times: Times) -> crate::VerbResult {
    let MigrateArguments { lock_wait, citus, verb } = arguments;
    if lock_wait.wait.is_some() && !matches!(verb, None | Some(MigrateCommand::Run(_))) {
        output::print_note("--wait is for `oncely migrate` and `oncely migrate run`");
        return Ok(ExitCode::from(exit::USAGE));
    }
    if citus.citus && verb.is_some() {
        output::print_note("--citus is for `oncely migrate` without a verb");
        return Ok(ExitCode::from(exit::USAGE));
    }
    let settings = Config::load_postgres(file)?;
    let server = settings.redacted();
    let mut connection =
        settings.connect("oncely migrate").await.with_context(|| format!("cannot connect to {server}"))?;
    if !matches!(verb, Some(MigrateCommand::Info(_) | MigrateCommand::Revert { .. }))
        && let Some(why) = describe_unfit_encoding(&read_server_encoding(&mut connection).await?)
    {
        output::print_note(&format!("{server}: {why}"));
        return Ok(ExitCode::from(exit::CONFIG));
    }
    let state = read_migration_state(&mut connection).await?;
    match verb {
        Some(MigrateCommand::Info(info)) => return print_state(&state, info.output, times),
        Some(MigrateCommand::Revert { yes }) => {
            return revert_last(&mut connection, &state, &server, yes).await;
        }
        None | Some(MigrateCommand::Plan(_) | MigrateCommand::Run(_)) => {}
    }
    if let Some(why) = describe_refusal(&state) {
        output::print_note(&format!("{server}: {why}"));
        return Ok(ExitCode::from(exit::REFUSED));
    }
    if let Some(MigrateCommand::Plan(plan)) = verb {
        return migration_plan::run(&mut connection, &state, plan, times).await;
    }
    let distribution = citus
        .citus
        .then(|| Distribution { shards: citus.shards, colocate_with: citus.colocate_with.clone() });
    if state.pending.is_empty() {
        output::print_note(&format!("{server}: {}", describe_up_to_date(&state)));
        return spread(connection, &server, distribution.as_ref()).await;
    }
    let wait = match verb {
        Some(MigrateCommand::Run(own)) => own.wait.or(lock_wait.wait),
        _ => lock_wait.wait,
    };
    let connection = apply_pending(&settings, connection, &state, wait.unwrap_or(DEFAULT_WAIT)).await?;
    spread(connection, &server, distribution.as_ref()).await
}

/// Spreads the tables over the nodes of a cluster, if that is asked for, and closes the connection.
async fn spread(
    mut connection: PgConnection,
    server: &str,
    distribution: Option<&Distribution>,
) -> crate::VerbResult {
    if let Some(distribution) = distribution {
        match distribute(&mut connection, distribution).await {
            Ok(()) => {
                output::print_note(&format!("{server}: the tables are spread over the nodes of the cluster"))
            }
            Err(DistributeError::Postgres(error)) => {
                return Err(error).with_context(|| format!("spreading the tables of {server}"));
            }
            Err(refusal) => {
                output::print_note(&format!("{server}: {refusal}"));
                return Ok(ExitCode::from(exit::CONFIG));
            }
        }
    }
    connection.close().await?;
    Ok(ExitCode::SUCCESS)
}

/// Describes why this program can't apply migrations to the database; `None` if it can. It can't if applied migrations have other contents,
/// or if migrations are pending and a newer program has applied some.
fn describe_refusal(state: &MigrationState) -> Option<String> {
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

/// Describes that no migration of this program is pending.
fn describe_up_to_date(state: &MigrationState) -> String {
    match state.unknown.as_slice() {
        [] => "nothing to do, all migrations are applied".to_owned(),
        newer => format!("nothing to do, a newer Oncely has migrated it ({newer:?} are unknown here)"),
    }
}

/// Applies the missing migrations; each waits for locks for up to `wait`. Returns the connection.
async fn apply_pending(
    settings: &PgSettings,
    mut connection: PgConnection,
    state: &MigrationState,
    wait: Duration,
) -> anyhow::Result<PgConnection> {
    let server = settings.redacted();
    let context = || format!("migrating {server}");
    // Building an index on a large table takes longer than the configured statement timeout.
    sqlx::query("select set_config('statement_timeout', '0', false)").execute(&mut connection).await?;
    let mut watcher = settings.connect("oncely migrate watch").await.with_context(context)?;
    let mut sessions = MigrationSessions { connection: &mut connection, watcher: &mut watcher, wait };
    for (version, description) in &state.pending {
        sessions.apply(*version, description).await.with_context(context)?;
    }
    watcher.close().await?;
    output::print_note(&format!("{server}: applied {} migrations", state.pending.len()));
    Ok(connection)
}

/// Prints the applied and the missing migrations.
fn print_state(state: &MigrationState, output: Output, times: Times) -> crate::VerbResult {
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
    let is_clean = state.pending.is_empty() && state.changed.is_empty();
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

/// Reverts the last applied migration.
async fn revert_last(
    connection: &mut PgConnection,
    state: &MigrationState,
    server: &str,
    yes: bool,
) -> crate::VerbResult {
    if !state.unknown.is_empty() {
        output::print_note(&format!(
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
        output::print_note(&format!("{server}: nothing to do, no migration is applied"));
        return Ok(ExitCode::from(exit::NO));
    };
    output::print_note(&format!(
        "{server}: takes back {} ({}): what it made is dropped, with all its data; stop workers and relays before",
        last.version, last.description
    ));
    if !ask_confirmation(yes, &last.version.to_string())? {
        return Ok(ExitCode::from(exit::REFUSED));
    }
    let target = applied.iter().rev().nth(1).map_or(0, |before| before.version);
    sqlx::query("select set_config('statement_timeout', '0', false)").execute(&mut *connection).await?;
    MIGRATOR.undo(&mut *connection, target).await.with_context(|| format!("taking back {}", last.version))?;
    output::print_note(&format!("{server}: {} is taken back", last.version));
    Ok(ExitCode::SUCCESS)
}
