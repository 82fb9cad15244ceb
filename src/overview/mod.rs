//! How consumers, relays and processes stand, for whoever shows it: from heartbeats, stats and pauses. Nothing is counted in the
//! tables of messages but what is held by leases, of which an index holds no more than that: it costs the same however much there is.

mod consumer;
mod process;
mod recent;
mod target;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;

pub(crate) use self::consumer::{CONTENDED, ConsumerOverview, ConsumerState};
pub(crate) use self::process::{Seen, seen_processes};
pub(crate) use self::recent::SPAN;
pub(crate) use self::target::TargetOverview;
use crate::pg;

/// Everything at one time.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Overview {
    /// By the database's clock.
    pub(crate) now: DateTime<Utc>,
    /// By name.
    pub(crate) consumers: Vec<ConsumerOverview>,
    /// Where relays bring things.
    pub(crate) targets: Vec<TargetOverview>,
    #[serde(skip)]
    #[cfg_attr(not(feature = "top"), allow(dead_code))]
    pub(crate) processes: Vec<Seen>,
}

impl Overview {
    /// Asks. `configured`: the consumers of the configuration at hand, where there is one. For every role that may read
    /// `oncely.stats`: operators and auditors.
    ///
    /// # Errors
    /// When a query fails.
    pub(crate) async fn take(
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

    /// Processes of a kind that live.
    #[cfg_attr(not(feature = "top"), allow(dead_code))]
    pub(crate) fn living(&self, kind: &str) -> usize {
        self.processes.iter().filter(|seen| !seen.silent && seen.row.kind == kind).count()
    }
}
