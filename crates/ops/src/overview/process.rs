//! Processes, by their heartbeats.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;

use oncely_postgres::{self as pg, ProcessRow};
use oncely_worker::worker::ConsumerReport;

/// Silence after which a process is no longer listed.
const MAX_LISTED_SILENCE: TimeDelta = TimeDelta::hours(1);

/// A process, from its heartbeat.
#[derive(Clone, Debug)]
pub struct ProcessOverview {
    pub row: ProcessRow,
    /// Reports about a worker's consumers.
    pub reports: Vec<ConsumerReport>,
    /// Its last heartbeat is older than it should be.
    pub silent: bool,
}

/// Reads all processes that were seen within the last hour.
pub(super) async fn read_processes(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
) -> Result<Vec<ProcessOverview>, sqlx::Error> {
    let rows = pg::list_processes(connection, now - MAX_LISTED_SILENCE).await?;
    Ok(rows.into_iter().map(|row| into_overview(row, now)).collect())
}

/// Converts the row of a process; its reports are empty if they can't be parsed.
fn into_overview(row: ProcessRow, now: DateTime<Utc>) -> ProcessOverview {
    // Another build may have another format: then the state of its consumers is unknown.
    let reports = serde_json::from_value(row.consumers.clone()).unwrap_or_default();
    ProcessOverview { silent: now - row.last_seen_at > pg::SILENCE_TIME, row, reports }
}
