//! Keys of a layer in PostgreSQL.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::{PgConnection, PgPool};

use oncely_core::identity::IdentityPart;
use oncely_lease::DualInstant;
use oncely_postgres::{self as pg, DatabaseClock, Registration};

/// How long this machine's clock extends a reading of the database's clock (see [`DualInstant::holds`]).
const READING_LIFETIME: Duration = Duration::from_secs(60);

/// The application's session pool, and the process's registrations of its consumers.
#[derive(Clone)]
pub(super) struct Store {
    pub(super) pool: PgPool,
    clock: DatabaseClock,
    registrations: Arc<Mutex<RegistrationCache>>,
    /// Serializes registrations and clock readings of this process.
    preparation: Arc<tokio::sync::Mutex<()>>,
}

/// Registration of a consumer in the database.
pub(super) struct ConsumerRegistration {
    pub(super) consumer: IdentityPart,
    pub(super) retention: Duration,
    pub(super) redelivery_horizon: Duration,
    pub(super) fingerprint: String,
    pub(super) worker: String,
    /// Whether it is a queue's consumer, with settings decided by its workers.
    pub(super) is_shared: bool,
}

#[derive(Default)]
struct RegistrationCache {
    /// Consumers that are registered.
    registered: HashSet<IdentityPart>,
    /// When the database's clock was last read.
    clock_read_at: Option<DualInstant>,
}

impl RegistrationCache {
    fn has(&self, consumer: &IdentityPart) -> bool {
        self.registered.contains(consumer)
    }

    /// Returns whether the reading is recent, by two clocks: a monotonic clock alone stands still while the machine is suspended.
    fn is_clock_recent(&self) -> bool {
        self.clock_read_at.is_some_and(|read_at| read_at.holds(READING_LIFETIME))
    }
}

impl Store {
    pub(super) fn new(pool: PgPool) -> Self {
        let clock = DatabaseClock::new(chrono::DateTime::UNIX_EPOCH, Instant::now());
        Self { pool, clock, registrations: Arc::default(), preparation: Arc::default() }
    }

    /// Returns whether this consumer is registered.
    pub(super) fn is_registered(&self, consumer: &IdentityPart) -> bool {
        self.lock_registrations().has(consumer)
    }

    /// Returns whether the consumer is registered, and the reading of the clock is recent.
    fn is_prepared(&self, consumer: &IdentityPart) -> bool {
        let registrations = self.lock_registrations();
        registrations.has(consumer) && registrations.is_clock_recent()
    }

    fn lock_registrations(&self) -> MutexGuard<'_, RegistrationCache> {
        // Every change leaves it consistent.
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the database's time.
    pub(super) fn now(&self) -> chrono::DateTime<chrono::Utc> {
        self.clock.now()
    }

    /// Registers a consumer once, as a worker does when it starts, and reads the database's clock at intervals. Uses its own transaction,
    /// as a request may take long and other processes register, too. Returns false if another process, or another request of this one until
    /// `until`, is registering it; nothing is changed, and the call may be repeated.
    pub(super) async fn prepare(
        &self,
        consumer: &IdentityPart,
        until: tokio::time::Instant,
        registration: impl FnOnce() -> ConsumerRegistration,
    ) -> Result<bool, sqlx::Error> {
        if self.is_prepared(consumer) {
            return Ok(true);
        }
        // A waiting request holds no connection.
        let Ok(_turn) = tokio::time::timeout_at(until, self.preparation.lock()).await else {
            return Ok(false);
        };
        if self.is_prepared(consumer) {
            return Ok(true);
        }
        let mut transaction = pg::begin_on_pool(&self.pool).await?;
        if !self.is_registered(consumer) {
            match register(&mut transaction, registration()).await {
                Err(error) if pg::is_locked(&error) => {
                    transaction.rollback().await?;
                    return Ok(false);
                }
                registered => registered?,
            }
        }
        let (began, read_at) = (Instant::now(), DualInstant::now());
        let now = pg::read_clock(&mut transaction).await?.database;
        transaction.commit().await?;
        self.clock.set(now, began);
        let mut registrations = self.lock_registrations();
        registrations.registered.insert(consumer.clone());
        registrations.clock_read_at = Some(read_at);
        Ok(true)
    }
}

/// Registers a consumer, and warns of changes: a longer retention of a queue's keys, another fingerprint policy.
async fn register(
    connection: &mut PgConnection,
    registration: ConsumerRegistration,
) -> Result<(), sqlx::Error> {
    let ConsumerRegistration { consumer, retention, redelivery_horizon, fingerprint, worker, is_shared } =
        registration;
    let name = consumer.as_str();
    let outcome = if is_shared {
        let existing = pg::list_consumers(connection).await?.into_iter().find(|row| row.consumer == name);
        if let Some(existing) = existing.filter(|existing| existing.retention < retention) {
            tracing::warn!(%consumer, before = ?existing.retention, now = ?retention,
                "retention of the queue's keys raised to that of the HTTP door");
        }
        pg::register_shared(connection, name, retention, &worker).await?
    } else {
        let fingerprint = &fingerprint;
        let settings = Registration {
            consumer: name,
            retention,
            redelivery_horizon,
            fingerprint,
            on_conflict: "dead_letter",
            worker: &worker,
        };
        pg::register_consumer(connection, settings).await?
    };
    let Some(former) = outcome.former_fingerprint.filter(|former| *former != fingerprint) else {
        return Ok(());
    };
    if is_shared {
        tracing::warn!(%consumer, queue = former, fingerprint,
            "fingerprint policy differs from the workers'; messages and requests with one key are not compared");
    } else {
        tracing::warn!(%consumer, former, fingerprint,
            "fingerprint policy changed; answers stored under the former one are not replayed (422)");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn the_databases_time_is_asked_for_again_when_either_clock_says_so() {
        let at = |monotonic: u64, wall: i64| {
            let since = Instant::now().checked_sub(Duration::from_secs(monotonic)).unwrap();
            let ago = Duration::from_secs(wall.unsigned_abs());
            let now = SystemTime::now();
            let wall = if wall < 0 { now + ago } else { now - ago };
            RegistrationCache {
                clock_read_at: Some(DualInstant::from_times((since, wall))),
                ..RegistrationCache::default()
            }
            .is_clock_recent()
        };
        assert!(at(0, 0) && at(50, 50));
        assert!(!at(60, 60));
        assert!(!at(1, 3_600), "suspended: the monotonic clock has stood still");
        assert!(!at(60, 1), "the wall clock was set back");
        assert!(!at(1, -5), "before the question");
        assert!(!RegistrationCache::default().is_clock_recent());
    }
}
