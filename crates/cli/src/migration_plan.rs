//! `oncely migrate plan`: the locks of the pending migrations, and their estimated duration.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use sqlx::PgConnection;

use super::output::{self, List, Output, Row, Times};
use oncely_ops::exit;
use oncely_postgres::{self as pg, BlockedSessions, LockedWork, MigrationState, PlannedLock};

#[derive(Clone, Copy, Debug, Args)]
pub(super) struct MigrationPlanArguments {
    #[command(flatten)]
    output: Output,
}

/// A table that a pending migration locks, or a migration that blocks no session.
#[derive(Debug, Default, Serialize)]
struct PlanRow {
    version: i64,
    description: String,
    table: Option<String>,
    kept_out: Option<BlockedSessions>,
    work: Option<LockedWork>,
    rows: Option<i64>,
    bytes: Option<i64>,
    seconds: f64,
}

impl From<PlannedLock> for PlanRow {
    fn from(planned: PlannedLock) -> Self {
        let seconds = planned.seconds();
        let (table, kept_out, work) = match planned.lock {
            Some(lock) => (Some(lock.table), Some(lock.kept_out), Some(lock.work)),
            None => (None, None, None),
        };
        Self {
            version: planned.version,
            description: planned.description,
            table,
            kept_out,
            work,
            rows: planned.size.rows,
            bytes: planned.size.bytes,
            // A precision of a tenth is enough, also for programs.
            seconds: (seconds * 10.0).round() / 10.0,
        }
    }
}

impl Row for PlanRow {
    const SCHEMA: &'static str = "oncely.migrate.lock/1";
    const HEADS: &'static [&'static str] =
        &["VERSION", "MIGRATION", "TABLE", "KEEPS WAITING", "FOR", "ROWS", "SIZE"];

    fn cells(&self, _: Times) -> Vec<String> {
        let dash = || "-".to_owned();
        let kept_out = match self.kept_out {
            None => "nobody",
            Some(BlockedSessions::Writes) => "writes",
            Some(BlockedSessions::Everybody) => "everybody",
        };
        let about = output::format_seconds(self.seconds.max(0.1));
        let duration = match self.work {
            None => dash(),
            Some(LockedWork::Catalogue) => "a moment".to_owned(),
            Some(LockedWork::ReadsAllRows) => format!("about {about}: reads all rows"),
            Some(LockedWork::RewritesAllRows) => format!("about {about}: writes all rows anew"),
        };
        vec![
            self.version.to_string(),
            self.description.clone(),
            self.table.clone().unwrap_or_else(dash),
            kept_out.to_owned(),
            duration,
            self.rows.map_or_else(dash, |rows| rows.to_string()),
            self.bytes.map_or_else(dash, output::format_bytes),
        ]
    }
}

/// Longest wait that an upgrade under load should cause, in seconds.
const MAX_WAIT_SECONDS: f64 = 1.0;

pub(super) async fn run(
    connection: &mut PgConnection,
    state: &MigrationState,
    arguments: MigrationPlanArguments,
    times: Times,
) -> crate::VerbResult {
    let mut planned = pg::list_pending_locks(state)?;
    pg::measure_locked(connection, &mut planned).await?;
    let rows: Vec<PlanRow> = planned.into_iter().map(PlanRow::from).collect();
    let none = "nothing to do, all migrations are applied";
    List { schema: "oncely.migrate.plan/1", field: "locks", rows: &rows, none }
        .print(arguments.output, times)?;
    let code = exit_code(&rows);
    if code == exit::DANGER {
        output::print_note(
            "! other sessions wait for longer than a second: pause the consumers meanwhile (oncely consumers pause)",
        );
    }
    Ok(ExitCode::from(code))
}

/// Returns the exit code of a plan: nothing is pending, migrations are pending, or a session waits for longer than a second.
fn exit_code(rows: &[PlanRow]) -> u8 {
    match rows {
        [] => 0,
        rows if rows.iter().any(|row| row.seconds > MAX_WAIT_SECONDS) => exit::DANGER,
        _ => exit::NO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_says_whether_somebody_waits() {
        let row = |seconds| PlanRow { seconds, ..PlanRow::default() };
        assert_eq!(exit_code(&[]), 0);
        assert_eq!(exit_code(&[row(0.0), row(1.0)]), 1);
        assert_eq!(exit_code(&[row(0.0), row(1.1)]), 5);
    }
}
