//! Reads the database's epoch every quarter of a second: mirror entries of another epoch are ignored.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;

use oncely_postgres::{DatabaseClock, PgSettings, Timelines, database_status, within};

/// Maximum age of an answer for a hit to be trusted, counted from before the query was sent.
pub(crate) const TRUST: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(250);
/// Longest wait for an answer; a later one is discarded.
const LIMIT: Duration = Duration::from_secs(5);

/// The database's answer about its epoch and replication, and the time of the query.
#[derive(Clone, Debug)]
pub struct DatabaseStatus {
    pub epoch: String,
    /// Whether commits may be lost: a standby that may take over without the latest commits is connected, was connected since this process
    /// started, or has a slot; or a crash may lose some.
    pub may_lose_commits: bool,
    now: DateTime<Utc>,
    asked: Instant,
}

impl DatabaseStatus {
    pub async fn read(connection: &mut PgConnection) -> Result<Self, sqlx::Error> {
        let asked = Instant::now();
        let (epoch, may_lose_commits, now) = within(LIMIT, database_status(connection)).await?;
        Ok(Self { epoch, may_lose_commits, now, asked })
    }

    /// Sets a clock to the database's.
    pub fn set(&self, clock: &DatabaseClock) {
        clock.set(self.now, self.asked);
    }

    /// Returns whether the answer is recent enough to trust a mirror hit without another query.
    pub fn is_fresh(&self) -> bool {
        self.asked.elapsed() < TRUST
    }
}

/// The latest answer, shared by all lanes.
#[derive(Clone)]
pub struct EpochWatch(Arc<RwLock<Option<DatabaseStatus>>>, Arc<AtomicU64>);

impl EpochWatch {
    /// Starts the queries on a connection of their own, until `stop`. Sets `clock` to the database's time with each answer.
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
                    () = tokio::time::sleep(INTERVAL) => {}
                }
                // A query is never cut short; while the database is unavailable the last answer only grows older.
                let mut open = match connection.take() {
                    Some(open) => open,
                    None => match settings.connect(&application).await {
                        Ok(open) => open,
                        Err(_) => continue,
                    },
                };
                match DatabaseStatus::read(&mut open).await {
                    Ok(status) if timelines.admits(&status.epoch) => {
                        status.set(&clock);
                        shared.note(status);
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

    fn note(&self, mut status: DatabaseStatus) {
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
        latest.as_ref().is_some_and(|status| status.asked.elapsed() < limit)
    }

    /// Returns the number of epoch changes seen.
    pub fn changes(&self) -> u64 {
        self.1.load(Ordering::Relaxed)
    }

    /// Returns the latest answer; `None` before the first.
    pub fn latest(&self) -> Option<DatabaseStatus> {
        self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}
