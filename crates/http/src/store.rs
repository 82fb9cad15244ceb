//! Keys of a layer in PostgreSQL.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::{PgConnection, PgPool};

use oncely_core::identity::IdentityPart;
use oncely_lease::DualInstant;
use oncely_postgres::{self as pg, DatabaseClock, Registration};

/// How long this machine's clock extends a reading of the database's clock (less the margin of a belief).
const CLOCK: Duration = Duration::from_secs(60);

/// The application's session pool, and the process's facts about its consumers.
#[derive(Clone)]
pub(super) struct Store {
    pub(super) pool: PgPool,
    clock: DatabaseClock,
    known: Arc<Mutex<RegistrationCache>>,
    /// Serializes registrations and clock readings of this process.
    asking: Arc<tokio::sync::Mutex<()>>,
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
    /// When the clock was read.
    asked: Option<DualInstant>,
}

impl RegistrationCache {
    fn has(&self, consumer: &IdentityPart) -> bool {
        self.registered.contains(consumer)
    }

    /// Returns whether the reading is recent, by two clocks: a monotonic clock alone stands still while the machine is suspended.
    fn is_on_time(&self) -> bool {
        self.asked.is_some_and(|asked| asked.holds(CLOCK))
    }
}

impl Store {
    pub(super) fn new(pool: PgPool) -> Self {
        let clock = DatabaseClock::new(chrono::DateTime::UNIX_EPOCH, Instant::now());
        Self { pool, clock, known: Arc::default(), asking: Arc::default() }
    }

    /// Returns whether this consumer is registered.
    pub(super) fn knows(&self, consumer: &IdentityPart) -> bool {
        self.lock_registrations().has(consumer)
    }

    fn is_prepared(&self, consumer: &IdentityPart) -> bool {
        let known = self.lock_registrations();
        known.has(consumer) && known.is_on_time()
    }

    fn lock_registrations(&self) -> MutexGuard<'_, RegistrationCache> {
        // Every change leaves it consistent.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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
        told: impl FnOnce() -> ConsumerRegistration,
    ) -> Result<bool, sqlx::Error> {
        if self.is_prepared(consumer) {
            return Ok(true);
        }
        // A waiting request holds no connection.
        let Ok(_turn) = tokio::time::timeout_at(until, self.asking.lock()).await else { return Ok(false) };
        if self.is_prepared(consumer) {
            return Ok(true);
        }
        let mut transaction = pg::begin_on_pool(&self.pool).await?;
        if !self.knows(consumer) {
            match register(&mut transaction, told()).await {
                Err(error) if pg::is_locked(&error) => {
                    transaction.rollback().await?;
                    return Ok(false);
                }
                registered => registered?,
            }
        }
        let (asked, belief) = (Instant::now(), DualInstant::now());
        let now = pg::read_clock(&mut transaction).await?.database;
        transaction.commit().await?;
        self.clock.set(now, asked);
        let mut known = self.lock_registrations();
        known.registered.insert(consumer.clone());
        known.asked = Some(belief);
        Ok(true)
    }
}

async fn register(connection: &mut PgConnection, told: ConsumerRegistration) -> Result<(), sqlx::Error> {
    let ConsumerRegistration { consumer, retention, redelivery_horizon, fingerprint, worker, is_shared } =
        told;
    let name = consumer.as_str();
    let registered = if is_shared {
        let known = pg::known_consumers(connection).await?.into_iter().find(|known| known.consumer == name);
        if let Some(known) = known.filter(|known| known.retention < retention) {
            tracing::warn!(%consumer, before = ?known.retention, now = ?retention,
                "retention of the queue's keys raised to that of the HTTP door");
        }
        pg::register_shared(connection, name, retention, &worker).await?
    } else {
        let fingerprint = &fingerprint;
        let with = Registration {
            consumer: name,
            retention,
            redelivery_horizon,
            fingerprint,
            on_conflict: "dead_letter",
            worker: &worker,
        };
        pg::register_consumer(connection, with).await?
    };
    let Some(former) = registered.former_fingerprint.filter(|former| *former != fingerprint) else {
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
                asked: Some(DualInstant::since((since, wall))),
                ..RegistrationCache::default()
            }
            .is_on_time()
        };
        assert!(at(0, 0) && at(50, 50));
        assert!(!at(60, 60));
        assert!(!at(1, 3_600), "suspended: the monotonic clock has stood still");
        assert!(!at(60, 1), "the wall clock was set back");
        assert!(!at(1, -5), "before the question");
        assert!(!RegistrationCache::default().is_on_time());
    }
}
