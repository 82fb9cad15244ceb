//! The console's sessions to PostgreSQL: four in total, with a limit of a few seconds per statement.
//!
//! A place is free again when the server has answered, not when a caller stops waiting: callers query in a task of their own (`spawn_limited`),
//! which a dropped page does not end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::error::Elapsed;
use tokio_util::sync::{CancellationToken, DropGuard};

use oncely_config::Config;
use oncely_postgres::{self as pg, Abilities, PgSettings, Session};

/// Maximum number of sessions.
const SESSIONS: usize = 4;
/// The server's limit of one statement: a longer query is too wide.
const STATEMENT: Duration = Duration::from_millis(2_500);
/// Limit for a new session, and for the probe of an idle one: a slower server counts as unreachable.
const LIFE: Duration = Duration::from_secs(1);

tokio::task_local! {
    /// Cancelled when no caller waits any more for this task.
    static FORGOTTEN: CancellationToken;
}

/// Limit of a background task: the server ends statements long before, so after it the server is gone, and the task gives up.
pub(crate) const DEAD: Duration = Duration::from_secs(10);

/// Runs work to its end, even if the caller stops waiting. Dropping the guard keeps it from taking a session if it has none yet.
pub(crate) fn spawn_limited<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> (JoinHandle<Result<T, Elapsed>>, DropGuard) {
    let forgotten = CancellationToken::new();
    let work = FORGOTTEN.scope(forgotten.clone(), tokio::time::timeout(DEAD, work));
    (tokio::spawn(work), forgotten.drop_guard())
}

/// Idle sessions, and places for those in use.
pub(crate) struct Pool(Arc<PoolInner>);

struct PoolInner {
    settings: PgSettings,
    cell: String,
    places: Arc<Semaphore>,
    resting: Mutex<Vec<(Session, Abilities)>>,
}

/// A session in use. Only [`PooledSession::give_back`] returns it: after a failed query it is closed.
pub(crate) struct PooledSession {
    pub(crate) session: Session,
    pub(crate) abilities: Abilities,
    pool: Arc<PoolInner>,
    _place: OwnedSemaphorePermit,
}

impl Pool {
    pub(crate) fn new(config: &Config) -> Self {
        let settings = PgSettings {
            connect_timeout: LIFE.min(config.postgres.connect_timeout),
            statement_timeout: STATEMENT.min(config.postgres.statement_timeout),
            lock_timeout: STATEMENT.min(config.postgres.lock_timeout),
            ..config.postgres.clone()
        };
        Self(Arc::new(PoolInner {
            settings,
            cell: config.cell.clone(),
            places: Arc::new(Semaphore::new(SESSIONS)),
            resting: Mutex::default(),
        }))
    }

    /// Takes a session; waits if all are in use.
    ///
    /// # Errors
    /// If the server does not answer, is another cell's, or no caller waits any more.
    pub(crate) async fn lease(&self) -> Result<PooledSession, sqlx::Error> {
        let closed = |_| sqlx::Error::PoolClosed;
        let places = Arc::clone(&self.0.places);
        let forgotten = FORGOTTEN.try_with(CancellationToken::clone).unwrap_or_default();
        let place = tokio::select! {
            biased;
            () = forgotten.cancelled() => return Err(sqlx::Error::PoolClosed),
            place = places.acquire_owned() => place.map_err(closed)?,
        };
        // In a task of its own: if the caller stops waiting, the place stays taken until the server has answered.
        let pool = Arc::clone(&self.0);
        let opening = tokio::spawn(async move { pool.session(place).await });
        match opening.await {
            Ok(lease) => lease,
            Err(_) => Err(sqlx::Error::WorkerCrashed),
        }
    }

    /// Returns whether all sessions are in use.
    pub(crate) fn is_busy(&self) -> bool {
        self.0.places.available_permits() == 0
    }
}

impl PoolInner {
    async fn session(self: Arc<Self>, place: OwnedSemaphorePermit) -> Result<PooledSession, sqlx::Error> {
        let resting = self.lock().pop();
        if let Some((mut session, abilities)) = resting {
            match pg::within(LIFE, pg::process(&mut session.connection)).await {
                Ok(_) => return Ok(PooledSession { session, abilities, pool: self, _place: place }),
                // The server is gone, or was: the other idle sessions are as stale.
                Err(_) => self.lock().clear(),
            }
        }
        let (session, abilities) = pg::within(LIFE + LIFE / 2, self.open()).await?;
        Ok(PooledSession { session, abilities, pool: self, _place: place })
    }

    async fn open(&self) -> Result<(Session, Abilities), sqlx::Error> {
        let mut session = Session::open(&self.settings, "oncely console").await?;
        if session.cell.name != self.cell {
            let text = format!("the database is the cell {:?}, not {:?}", session.cell.name, self.cell);
            return Err(sqlx::Error::Configuration(text.into()));
        }
        pg::read_by_index(&mut session.connection).await?;
        let abilities = pg::abilities(&mut session.connection).await?;
        Ok((session, abilities))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Session, Abilities)>> {
        // A panic can't leave the list inconsistent.
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PooledSession {
    /// Returns the session to the idle ones.
    pub(crate) fn give_back(self) {
        self.pool.lock().push((self.session, self.abilities));
    }
}
