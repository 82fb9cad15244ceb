//! The state of consumers, relays and processes for display: from heartbeats, statistics and pauses. No table of messages is counted,
//! except the keys held by leases, which have an index of their own: the cost does not grow with the tables.

mod consumer;
mod process;
mod queue;
mod recent;
mod target;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

pub use self::consumer::{CONTENTION_TEXT, ConsumerOverview, ConsumerState};
pub use self::process::ProcessOverview;
pub use self::queue::{QueueState, query_queue_states};
pub use self::recent::SPAN_LENGTH;
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
    /// Reads the state. `configured`: the consumers of the given configuration; `None` without one. For every role that can read
    /// `oncely.stats`: operators and auditors.
    ///
    /// # Errors
    /// If a query fails.
    pub async fn read(
        connection: &mut PgConnection,
        configured: Option<&[String]>,
        now: DateTime<Utc>,
    ) -> Result<Self, sqlx::Error> {
        let known = pg::list_consumers(connection).await?;
        let pauses = pg::list_pauses(connection).await?;
        let processes = process::read_processes(connection, now).await?;
        let minute = recent::last_minute(now);
        let stats = pg::read_consumer_stats(connection, minute.start, SPAN_LENGTH).await?;
        let relay_stats = pg::read_relay_stats(connection, minute.start, SPAN_LENGTH).await?;
        let recents = recent::sum_by_consumer(&stats, &minute);
        let leases = pg::count_held_leases(connection, now).await?;
        let consumers =
            consumer::build_overviews(configured, &known, &pauses, &processes, &recents, &leases, now);
        Ok(Self {
            now,
            consumers,
            targets: target::sum_by_target(&relay_stats, &minute),
            processes,
            pauses,
            leases,
        })
    }

    /// Returns a consumer; `None` if it is neither configured nor known.
    pub fn consumer(&self, name: &str) -> Option<&ConsumerOverview> {
        self.consumers.iter().find(|one| one.consumer == name)
    }

    /// Counts the live processes of a kind.
    pub fn count_living(&self, kind: &str) -> usize {
        self.processes.iter().filter(|process| !process.silent && process.row.kind == kind).count()
    }
}
