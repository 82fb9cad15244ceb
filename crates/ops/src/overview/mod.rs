//! The state of consumers, relays and processes for display: from heartbeats, statistics and pauses. No table of messages is counted,
//! except the keys held by leases, which have an index of their own: the cost does not grow with the tables.

mod consumer;
mod process;
mod recent;
mod target;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;

pub use self::consumer::{CONTENDED, ConsumerOverview, ConsumerState};
pub use self::process::{ProcessOverview, seen_processes};
pub use self::recent::SPAN;
pub use self::target::TargetOverview;
use oncely_postgres as pg;

/// The state at one time.
#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    /// By the database's clock.
    pub now: DateTime<Utc>,
    /// By name.
    pub consumers: Vec<ConsumerOverview>,
    /// Targets of relays.
    pub targets: Vec<TargetOverview>,
    #[serde(skip)]
    pub processes: Vec<ProcessOverview>,
}

impl Overview {
    /// Queries the state. `configured`: the consumers of the given configuration, if there is one. For every role that can read
    /// `oncely.stats`: operators and auditors.
    ///
    /// # Errors
    /// If a query fails.
    pub async fn take(
        connection: &mut PgConnection,
        configured: Option<&[String]>,
        now: DateTime<Utc>,
    ) -> Result<Self, sqlx::Error> {
        let known = pg::known_consumers(connection).await?;
        let pauses = pg::pauses(connection).await?;
        let processes = seen_processes(connection, now).await?;
        let span = recent::last_minute(now);
        let stats = pg::consumer_stats(connection, span.start, SPAN).await?;
        let relayed = pg::relay_stats(connection, span.start, SPAN).await?;
        let recents = recent::by_consumer(&stats, &span);
        let leases = pg::held_counts(connection, now).await?;
        let consumers = consumer::overviews(configured, &known, &pauses, &processes, &recents, &leases, now);
        Ok(Self { now, consumers, targets: target::overviews(&relayed, &span), processes })
    }

    /// Counts the live processes of a kind.
    pub fn living(&self, kind: &str) -> usize {
        self.processes.iter().filter(|seen| !seen.silent && seen.row.kind == kind).count()
    }
}
