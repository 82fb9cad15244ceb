//! The epoch that the database is of, asked every quarter of a second: mirror entries of another epoch count for nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;

use crate::pg::{Clock, PgSettings, Timelines, database_status, within};

/// How old an answer may be for a hit to be trusted, counted from before the question was asked.
pub(crate) const TRUST: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(250);
/// A later answer counts as no answer.
const LIMIT: Duration = Duration::from_secs(5);

/// What the database said of itself, and when it was asked.
#[derive(Clone, Debug)]
pub(crate) struct DatabaseStatus {
    pub(crate) epoch: String,
    /// A standby is connected, was connected since this process started, or has a slot, that may take over without the latest
    /// commits; or a crash may lose some.
    pub(crate) may_lose_commits: bool,
    now: DateTime<Utc>,
    asked: Instant,
}

impl DatabaseStatus {
    /// Asks.
    pub(crate) async fn ask(connection: &mut PgConnection) -> Result<Self, sqlx::Error> {
        let asked = Instant::now();
        let (epoch, may_lose_commits, now) = within(LIMIT, database_status(connection)).await?;
        Ok(Self { epoch, may_lose_commits, now, asked })
    }

    /// Sets a clock by the database's.
    pub(crate) fn set(&self, clock: &Clock) {
        clock.set(self.now, self.asked);
    }

    /// Is the answer fresh enough to believe a mirror entry without asking again?
    pub(crate) fn is_fresh(&self) -> bool {
        self.asked.elapsed() < TRUST
    }
}

/// The latest answer, shared by all lanes.
#[derive(Clone)]
pub(crate) struct EpochWatch(Arc<RwLock<Option<DatabaseStatus>>>, Arc<AtomicU64>);

impl EpochWatch {
    /// Starts asking, on a connection of its own, until `stop`. Keeps `clock` in step with the database's.
    pub(crate) fn start(
        first: Option<DatabaseStatus>,
        settings: PgSettings,
        application: String,
        clock: Clock,
        timelines: Timelines,
        stop: CancellationToken,
    ) -> Self {
        let watch = Self(Arc::new(RwLock::new(first)), Arc::default());
        let shared = watch.clone();
        tokio::spawn(async move {
            let mut connection: Option<PgConnection> = None;
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(INTERVAL) => {}
                }
                // A question is never cut short; while the database is away the last answer just grows old.
                let mut open = match connection.take() {
                    Some(open) => open,
                    None => match settings.connect(&application).await {
                        Ok(open) => open,
                        Err(_) => continue,
                    },
                };
                match DatabaseStatus::ask(&mut open).await {
                    Ok(status) if timelines.admits(&status.epoch) => {
                        status.set(&clock);
                        shared.note(status);
                        connection = Some(open);
                    }
                    // A past that has come back to life says nothing about the present, not even the time; perhaps somebody else answers
                    // the next time.
                    Ok(status) => {
                        tracing::debug!(
                            epoch = status.epoch,
                            "the database is on an older timeline than it was"
                        )
                    }
                    Err(error) => {
                        tracing::debug!(error = %error, "the database did not say its epoch")
                    }
                }
            }
        });
        watch
    }

    fn note(&self, mut status: DatabaseStatus) {
        let mut slot = self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(before) = slot.as_ref()
            && before.epoch != status.epoch
        {
            self.1.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                before = before.epoch,
                now = status.epoch,
                "the database is of another epoch: old mirror entries count no more"
            );
        }
        // A standby that was cut off a moment ago is the one that takes over now.
        status.may_lose_commits |= slot.as_ref().is_some_and(|before| before.may_lose_commits);
        *slot = Some(status);
    }

    /// Has the database answered within this time?
    pub(crate) fn is_recent(&self, limit: Duration) -> bool {
        let latest = self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        latest.as_ref().is_some_and(|status| status.asked.elapsed() < limit)
    }

    /// How often another epoch was seen.
    pub(crate) fn changes(&self) -> u64 {
        self.1.load(Ordering::Relaxed)
    }

    /// The latest answer, if there ever was one.
    pub(crate) fn latest(&self) -> Option<DatabaseStatus> {
        self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}
