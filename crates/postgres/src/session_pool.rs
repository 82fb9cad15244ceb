//! A pool of sessions for single statements: each is opened like those for work, to the host that takes writes, with the URL currently in
//! its file.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::away::LastOutage;
use super::connection::within;
use super::door::{NoSession, SessionFactory};
use super::session::{Session, process};

/// Idle time after which a session is checked before use.
const FRESH: Duration = Duration::from_secs(1);
/// Longest wait for that check: a slower server counts as unavailable.
const LIFE: Duration = Duration::from_secs(1);

/// Idle sessions, and permits for those in use.
#[derive(Clone)]
pub struct SessionPool(Arc<SessionPoolInner>);

struct SessionPoolInner {
    door: SessionFactory,
    application: String,
    places: Arc<Semaphore>,
    /// Longest wait for a permit.
    wait: Duration,
    away: LastOutage,
    /// Idle sessions with the time of their return, the latest last.
    resting: Mutex<Vec<(Session, Instant)>>,
}

/// A session in use. It returns only by [`BorrowedSession::give_back`]: after an unanswered statement its connection is closed with it.
pub struct BorrowedSession {
    session: Session,
    pool: Arc<SessionPoolInner>,
    _place: OwnedSemaphorePermit,
}

impl std::fmt::Debug for SessionPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionPool").field("application", &self.0.application).finish_non_exhaustive()
    }
}

impl SessionPool {
    /// Creates a pool of up to `most` sessions; a caller waits up to `wait` while all are in use.
    pub fn new(door: SessionFactory, application: String, most: usize, wait: Duration) -> Self {
        let places = Arc::new(Semaphore::new(most));
        Self(Arc::new(SessionPoolInner {
            door,
            application,
            places,
            wait,
            away: LastOutage::default(),
            resting: Mutex::default(),
        }))
    }

    /// Returns the times at which no session could be opened.
    pub fn last_outage(&self) -> LastOutage {
        self.0.away.clone()
    }

    /// Takes a session. To be called in a task of its own that is not dropped half-way.
    ///
    /// # Errors
    /// If the server does not answer, is of another cell or an old timeline, or all sessions stay in use.
    pub async fn take(&self) -> Result<BorrowedSession, NoSession> {
        let pool = &self.0;
        let place = tokio::time::timeout(pool.wait, Arc::clone(&pool.places).acquire_owned()).await;
        let place = place.map_err(|_| sqlx::Error::PoolTimedOut)?.map_err(|_| sqlx::Error::PoolClosed)?;
        let session = match pool.rested().await {
            Some(session) => session,
            None => pool.door.open(&pool.application).await.inspect_err(|_| pool.away.note())?,
        };
        Ok(BorrowedSession { session, pool: Arc::clone(pool), _place: place })
    }
}

impl SessionPoolInner {
    /// Returns an idle session that is alive.
    async fn rested(&self) -> Option<Session> {
        let (mut session, since) = self.lock().pop()?;
        let is_alive =
            since.elapsed() < FRESH || within(LIFE, process(&mut session.connection)).await.is_ok();
        if is_alive && self.door.admits(&session) {
            return Some(session);
        }
        // The connection or its server is gone: the other idle sessions are no more reliable.
        self.lock().clear();
        None
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Session, Instant)>> {
        // No change leaves the list inconsistent.
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BorrowedSession {
    pub fn connection(&mut self) -> &mut PgConnection {
        &mut self.session.connection
    }

    /// Returns the session to the pool.
    pub fn give_back(self) {
        self.pool.lock().push((self.session, Instant::now()));
    }
}
