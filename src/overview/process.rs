//! Processes, by their heartbeats.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;

use crate::pg::{self, ProcessRow};
use crate::worker::Report;

/// A process that is silent for so long is not spoken of any more.
const GONE: TimeDelta = TimeDelta::hours(1);

/// A process, by its heartbeat.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) row: ProcessRow,
    /// How the consumers of a worker fare.
    pub(crate) reports: Vec<Report>,
    /// Its last beat is older than it should be.
    pub(crate) silent: bool,
}

/// All processes that were seen within the last hour.
pub(crate) async fn seen_processes(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
) -> Result<Vec<Seen>, sqlx::Error> {
    let rows = pg::processes(connection, now - GONE).await?;
    Ok(rows.into_iter().map(|row| seen(row, now)).collect())
}

fn seen(row: ProcessRow, now: DateTime<Utc>) -> Seen {
    // Of another build it may say something else: then nothing is known of its consumers.
    let reports = serde_json::from_value(row.consumers.clone()).unwrap_or_default();
    Seen { silent: now - row.last_seen_at > pg::SILENT, row, reports }
}
