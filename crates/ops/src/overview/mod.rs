//! The state of consumers, relays and processes for display: from heartbeats, statistics and pauses. No table of messages is counted,
//! except the keys held by leases, which have an index of their own: the cost does not grow with the tables.

mod consumer;
mod process;
mod queue;
mod recent;
mod target;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

pub use self::consumer::{CONTENDED, ConsumerOverview, ConsumerState};
pub use self::process::ProcessOverview;
pub use self::queue::{QueueState, queue_states};
pub use self::recent::SPAN;
pub use self::target::TargetOverview;
use oncely_postgres::{self as pg, HeldCount, Pause};

/// The state at one time.
#[derive(Clone, Debug)]
pub struct Overview {
    /// By the database's clock.
    pub now: DateTime<Utc>,
    /// By name.
    pub consumers: Vec<ConsumerOverview>,
    /// Targets of relays.
    pub targets: Vec<TargetOverview>,
    pub processes: Vec<ProcessOverview>,
    pub pauses: Vec<Pause>,
    /// Keys that runs hold by leases, by consumer.
    pub leases: Vec<HeldCount>,
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
        let processes = process::seen_processes(connection, now).await?;
        let span = recent::last_minute(now);
        let stats = pg::consumer_stats(connection, span.start, SPAN).await?;
        let relayed = pg::relay_stats(connection, span.start, SPAN).await?;
        let recents = recent::by_consumer(&stats, &span);
        let leases = pg::held_counts(connection, now).await?;
        let consumers = consumer::overviews(configured, &known, &pauses, &processes, &recents, &leases, now);
        Ok(Self { now, consumers, targets: target::overviews(&relayed, &span), processes, pauses, leases })
    }

    /// Returns a consumer; `None` if it is neither configured nor known.
    pub fn consumer(&self, name: &str) -> Option<&ConsumerOverview> {
        self.consumers.iter().find(|one| one.consumer == name)
    }

    /// Counts the live processes of a kind.
    pub fn living(&self, kind: &str) -> usize {
        self.processes.iter().filter(|seen| !seen.silent && seen.row.kind == kind).count()
    }
}
