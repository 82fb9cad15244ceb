//! Where a layer keeps its keys.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::PgPool;

use crate::identity::IdentityPart;
use crate::pg::{self, Clock, Registration};

/// How long the database's clock is carried on by this machine's.
const CLOCK: Duration = Duration::from_secs(60);

/// The application's own sessions, and what this process knows of its keys.
#[derive(Clone)]
pub(super) struct Store {
    pub(super) pool: PgPool,
    clock: Clock,
    known: Arc<Mutex<Known>>,
}

/// What the database is told of a consumer.
pub(super) struct Told {
    pub(super) consumer: IdentityPart,
    pub(super) retention: Duration,
    pub(super) redelivery_horizon: Duration,
    pub(super) fingerprint: String,
    pub(super) worker: String,
}

#[derive(Default)]
struct Known {
    /// Consumers that the database was told of.
    registered: HashSet<IdentityPart>,
    /// When the clock was read.
    asked: Option<Instant>,
}

impl Store {
    pub(super) fn new(pool: PgPool) -> Self {
        Self { pool, clock: Clock::new(chrono::DateTime::UNIX_EPOCH, Instant::now()), known: Arc::default() }
    }

    /// The database's time.
    pub(super) fn now(&self) -> chrono::DateTime<chrono::Utc> {
        self.clock.now()
    }

    /// Tells the database of a consumer, once, as a worker does when it starts; and asks it what time it is, now and then. In a
    /// transaction of its own: a request may take long, and others register, too.
    pub(super) async fn prepare(
        &self,
        consumer: &IdentityPart,
        told: impl FnOnce() -> Told,
    ) -> Result<(), sqlx::Error> {
        let (is_registered, is_on_time) = {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            (known.registered.contains(consumer), known.asked.is_some_and(|asked| asked.elapsed() < CLOCK))
        };
        if is_registered && is_on_time {
            return Ok(());
        }
        let mut transaction = pg::begin_on_pool(&self.pool).await?;
        if !is_registered {
            let told = told();
            let with = Registration {
                consumer: told.consumer.as_str(),
                retention: told.retention,
                redelivery_horizon: told.redelivery_horizon,
                fingerprint: &told.fingerprint,
                on_conflict: "dead_letter",
                worker: &told.worker,
            };
            let known = pg::register_consumer(&mut transaction, with).await?;
            if let Some(former) = known.former_fingerprint.filter(|former| *former != told.fingerprint) {
                tracing::warn!(%consumer, former, fingerprint = told.fingerprint,
                    "another fingerprint policy than before: for keys that were stored by the former one the key alone decides");
            }
        }
        let asked = Instant::now();
        let now = pg::read_clock(&mut transaction).await?.database;
        transaction.commit().await?;
        self.clock.set(now, asked);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.registered.insert(consumer.clone());
        known.asked = Some(asked);
        Ok(())
    }
}
