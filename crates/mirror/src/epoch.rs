//! Reads the database's epoch every quarter of a second: mirror entries of another epoch are ignored.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;

use oncely_postgres::{DatabaseClock, PgSettings, Timelines, read_database_status, wait_for_answer};

/// Maximum age of a status for a hit to be trusted, counted from before the query was sent.
pub(crate) const MAX_TRUST_AGE: Duration = Duration::from_secs(1);
const READ_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum wait for a status; a later one is discarded.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The database's epoch and replication, and the time of the query.
#[derive(Clone, Debug)]
pub struct DatabaseStatus {
    pub epoch: String,
    /// Whether commits may be lost: a standby that may take over without the latest commits is connected, was connected since this process
    /// started, or has a slot; or a crash may lose some.
    pub may_lose_commits: bool,
    now: DateTime<Utc>,
    queried_at: Instant,
}

impl DatabaseStatus {
    /// Queries the database's epoch, replication and time. Waits for up to 5 seconds.
    pub async fn read(connection: &mut PgConnection) -> Result<Self, sqlx::Error> {
        let queried_at = Instant::now();
        let (epoch, may_lose_commits, now) =
            wait_for_answer(READ_TIMEOUT, read_database_status(connection)).await?;
        Ok(Self { epoch, may_lose_commits, now, queried_at })
    }

    /// Sets a clock to the database's time.
    pub fn set_clock(&self, clock: &DatabaseClock) {
        clock.set(self.now, self.queried_at);
    }

    /// Returns whether the status is recent enough to trust a mirror hit without another query.
    pub fn is_fresh(&self) -> bool {
        self.queried_at.elapsed() < MAX_TRUST_AGE
    }
}

/// The latest status, shared by all lanes.
#[derive(Clone)]
pub struct EpochWatch(Arc<RwLock<Option<DatabaseStatus>>>, Arc<AtomicU64>);

impl EpochWatch {
    /// Starts the queries on a connection of their own, until `stop`. Sets `clock` to the database's time with each status.
    pub fn start(
        first: Option<DatabaseStatus>,
        settings: PgSettings,
        application: String,
        clock: DatabaseClock,
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
                    () = tokio::time::sleep(READ_INTERVAL) => {}
                }
                // A query is never cut short; while the database is unavailable the last status only grows older.
                let mut open = match connection.take() {
                    Some(open) => open,
                    None => match settings.connect(&application).await {
                        Ok(open) => open,
                        Err(_) => continue,
                    },
                };
                match DatabaseStatus::read(&mut open).await {
                    Ok(status) if timelines.record_epoch(&status.epoch) => {
                        status.set_clock(&clock);
                        shared.record(status);
                        connection = Some(open);
                    }
                    // A former primary that is running again says nothing about the present, not even the time; the next connection may
                    // reach another server.
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

    /// Records a status. An epoch that has changed makes older entries of the mirror invalid: it is counted and logged.
    fn record(&self, mut status: DatabaseStatus) {
        let mut slot = self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(before) = slot.as_ref()
            && before.epoch != status.epoch
        {
            self.1.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                before = before.epoch,
                now = status.epoch,
                "database epoch changed; ignoring mirror entries of the former one"
            );
        }
        // A standby that was disconnected a moment ago is the one that takes over now.
        status.may_lose_commits |= slot.as_ref().is_some_and(|before| before.may_lose_commits);
        *slot = Some(status);
    }

    /// Returns whether the database has answered within `limit`.
    pub fn is_recent(&self, limit: Duration) -> bool {
        let latest = self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        latest.as_ref().is_some_and(|status| status.queried_at.elapsed() < limit)
    }

    /// Returns the number of recorded changes of the epoch.
    pub fn changes(&self) -> u64 {
        self.1.load(Ordering::Relaxed)
    }

    /// Returns the latest status; `None` before the first.
    pub fn latest_status(&self) -> Option<DatabaseStatus> {
        self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}
