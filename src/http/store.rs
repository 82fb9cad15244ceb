//! Where a layer keeps its keys.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::{PgConnection, PgPool};

use crate::handler::lease::Belief;
use crate::identity::IdentityPart;
use crate::pg::{self, Clock, Registration};

/// How long the database's clock is carried on by this machine's (less the margin of a belief).
const CLOCK: Duration = Duration::from_secs(60);

/// The application's own sessions, and what this process knows of its keys.
#[derive(Clone)]
pub(super) struct Store {
    pub(super) pool: PgPool,
    clock: Clock,
    known: Arc<Mutex<Known>>,
    /// One of this process asks at a time; the others need not.
    asking: Arc<tokio::sync::Mutex<()>>,
}

/// What the database is told of a consumer.
pub(super) struct Told {
    pub(super) consumer: IdentityPart,
    pub(super) retention: Duration,
    pub(super) redelivery_horizon: Duration,
    pub(super) fingerprint: String,
    pub(super) worker: String,
    /// It is a queue's, whose workers decide about it.
    pub(super) is_shared: bool,
}

#[derive(Default)]
struct Known {
    /// Consumers that the database was told of.
    registered: HashSet<IdentityPart>,
    /// When the clock was read.
    asked: Option<Belief>,
}

impl Known {
    fn has(&self, consumer: &IdentityPart) -> bool {
        self.registered.contains(consumer)
    }

    /// By two clocks: one of them stands still while the machine is suspended, and what time it is would be taken from before.
    fn is_on_time(&self) -> bool {
        self.asked.is_some_and(|asked| asked.holds(CLOCK))
    }
}

impl Store {
    pub(super) fn new(pool: PgPool) -> Self {
        let clock = Clock::new(chrono::DateTime::UNIX_EPOCH, Instant::now());
        Self { pool, clock, known: Arc::default(), asking: Arc::default() }
    }

    /// Was the database told of this consumer?
    pub(super) fn knows(&self, consumer: &IdentityPart) -> bool {
        self.known().has(consumer)
    }

    fn is_prepared(&self, consumer: &IdentityPart) -> bool {
        let known = self.known();
        known.has(consumer) && known.is_on_time()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Every change leaves it whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database's time.
    pub(super) fn now(&self) -> chrono::DateTime<chrono::Utc> {
        self.clock.now()
    }

    /// Tells the database of a consumer, once, as a worker does when it starts; and asks it what time it is, now and then. In a
    /// transaction of its own: a request may take long, and others register, too. False: another process registers it just now, or one of
    /// this process does until then; nothing is changed, and it may be tried again.
    pub(super) async fn prepare(
        &self,
        consumer: &IdentityPart,
        until: tokio::time::Instant,
        told: impl FnOnce() -> Told,
    ) -> Result<bool, sqlx::Error> {
        if self.is_prepared(consumer) {
            return Ok(true);
        }
        // Who waits here has no connection.
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
        let (asked, belief) = (Instant::now(), Belief::now());
        let now = pg::read_clock(&mut transaction).await?.database;
        transaction.commit().await?;
        self.clock.set(now, asked);
        let mut known = self.known();
        known.registered.insert(consumer.clone());
        known.asked = Some(belief);
        Ok(true)
    }
}

async fn register(connection: &mut PgConnection, told: Told) -> Result<(), sqlx::Error> {
    let Told { consumer, retention, redelivery_horizon, fingerprint, worker, is_shared } = told;
    let name = consumer.as_str();
    let registered = if is_shared {
        let known = pg::known_consumers(connection).await?.into_iter().find(|known| known.consumer == name);
        if let Some(known) = known.filter(|known| known.retention < retention) {
            tracing::warn!(%consumer, before = ?known.retention, now = ?retention,
                "the queue's keys are kept for longer from now on, as long as the answers to requests");
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
            "the queue's workers compare by another fingerprint policy: a message and a request of one key are not compared");
    } else {
        tracing::warn!(%consumer, former, fingerprint,
            "another fingerprint policy than before: answers that were stored by the former one are not given again (422)");
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
            Known { asked: Some(Belief::since((since, wall))), ..Known::default() }.is_on_time()
        };
        assert!(at(0, 0) && at(50, 50));
        assert!(!at(60, 60));
        assert!(!at(1, 3_600), "suspended: the monotonic clock has stood still");
        assert!(!at(60, 1), "the wall clock was set back");
        assert!(!at(1, -5), "before the question");
        assert!(!Known::default().is_on_time());
    }
}
