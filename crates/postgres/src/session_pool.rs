//! A pool of sessions, which are opened to the host that takes writes, with the URL currently in its file.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection::wait_for_answer;
use super::last_outage::LastOutage;
use super::session::{Session, read_backend_pid};
use super::session_factory::{NoSession, SessionFactory};

/// Maximum wait for the check of an idle session: a slower server counts as unavailable.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens the sessions of a pool.
pub trait SessionOpener: Send + Sync + 'static {
    /// Facts that are kept with each session while it is open.
    type Facts: Send + 'static;

    /// Opens a session.
    fn open(&self) -> impl Future<Output = Result<(Session, Self::Facts), NoSession>> + Send;

    /// Records the timeline of an idle session; returns false if a newer one of the same server was recorded before.
    fn record_timeline(&self, session: &Session) -> bool;
}

/// Opens sessions for single statements.
#[derive(Debug)]
pub struct PlainOpener {
    factory: SessionFactory,
    application: String,
}

impl SessionOpener for PlainOpener {
    type Facts = ();

    async fn open(&self) -> Result<(Session, ()), NoSession> {
        Ok((self.factory.open(&self.application).await?, ()))
    }

    fn record_timeline(&self, session: &Session) -> bool {
        self.factory.record_timeline(session)
    }
}

/// Limits of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Maximum number of sessions.
    pub sessions: usize,
    /// Maximum wait while all sessions are in use; `None` for no limit.
    pub wait: Option<Duration>,
    /// Idle time after which a session is checked before use; `None` for never.
    pub check_after: Option<Duration>,
}

/// Idle sessions, and permits for those in use.
pub struct SessionPool<O: SessionOpener = PlainOpener>(Arc<PoolInner<O>>);

struct PoolInner<O: SessionOpener> {
    opener: O,
    limits: PoolLimits,
    permits: Arc<Semaphore>,
    last_outage: LastOutage,
    /// Idle sessions with the time of their return, the latest last.
    idle: Mutex<Vec<(Session, O::Facts, Instant)>>,
}

/// The right to one of a pool's sessions.
#[derive(Debug)]
pub struct PoolPermit {
    _permit: OwnedSemaphorePermit,
}

/// A session in use. It returns only by [`PooledSession::give_back`]: after an unanswered statement its connection is closed with it.
pub struct PooledSession<O: SessionOpener = PlainOpener> {
    pub session: Session,
    pub facts: O::Facts,
    is_fresh: bool,
    pool: Arc<PoolInner<O>>,
    _permit: PoolPermit,
}

impl<O: SessionOpener> Clone for SessionPool<O> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<O: SessionOpener> std::fmt::Debug for SessionPool<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionPool").field("limits", &self.0.limits).finish_non_exhaustive()
    }
}

impl SessionPool {
    /// Creates a pool of up to `max_sessions` sessions for single statements; a caller waits up to `wait` while all are in use.
    pub fn new(factory: SessionFactory, application: String, max_sessions: usize, wait: Duration) -> Self {
        let limits = PoolLimits {
            sessions: max_sessions,
            wait: Some(wait),
            check_after: Some(Duration::from_secs(1)),
        };
        Self::with_opener(PlainOpener { factory, application }, limits, LastOutage::default())
    }
}

impl<O: SessionOpener> SessionPool<O> {
    /// Creates a pool; `last_outage` records the times at which no session could be opened.
    pub fn with_opener(opener: O, limits: PoolLimits, last_outage: LastOutage) -> Self {
        let permits = Arc::new(Semaphore::new(limits.sessions));
        Self(Arc::new(PoolInner { opener, limits, permits, last_outage, idle: Mutex::default() }))
    }

    /// Returns the times at which no session could be opened.
    pub fn last_outage(&self) -> LastOutage {
        self.0.last_outage.clone()
    }

    /// Returns whether all sessions are in use.
    pub fn is_exhausted(&self) -> bool {
        self.0.permits.available_permits() == 0
    }

    /// Waits for the right to one of the sessions. May be dropped at any time.
    ///
    /// # Errors
    /// If all sessions stay in use for longer than [`PoolLimits::wait`].
    pub async fn wait_for_permit(&self) -> Result<PoolPermit, NoSession> {
        let permit = Arc::clone(&self.0.permits).acquire_owned();
        let permit = match self.0.limits.wait {
            Some(wait) => tokio::time::timeout(wait, permit).await.map_err(|_| sqlx::Error::PoolTimedOut)?,
            None => permit.await,
        };
        Ok(PoolPermit { _permit: permit.map_err(|_| sqlx::Error::PoolClosed)? })
    }

    /// Takes a session. To be called in a task of its own that is not dropped half-way.
    ///
    /// # Errors
    /// If the server does not answer, is of another cell or an old timeline, or all sessions stay in use.
    pub async fn acquire(&self) -> Result<PooledSession<O>, NoSession> {
        let permit = self.wait_for_permit().await?;
        self.acquire_with(permit).await
    }

    /// Takes the session of a permit. To be called in a task of its own that is not dropped half-way.
    ///
    /// # Errors
    /// If the server does not answer, or is of another cell or an old timeline.
    pub async fn acquire_with(&self, permit: PoolPermit) -> Result<PooledSession<O>, NoSession> {
        let pool = &self.0;
        let (session, facts, is_fresh) = match pool.take_idle().await {
            Some((session, facts)) => (session, facts, false),
            None => {
                let (session, facts) = pool.opener.open().await.inspect_err(|_| pool.last_outage.record())?;
                (session, facts, true)
            }
        };
        Ok(PooledSession { session, facts, is_fresh, pool: Arc::clone(pool), _permit: permit })
    }

    /// Closes all idle sessions.
    pub async fn close_idle(&self) {
        let idle = std::mem::take(&mut *self.0.lock());
        for (session, ..) in idle {
            session.close().await;
        }
    }
}

impl<O: SessionOpener> PoolInner<O> {
    /// Takes an idle session on the newest known timeline, which has to answer if its last use is long ago. Returns `None` if there is
    /// none; drops all idle sessions if one does not answer.
    async fn take_idle(&self) -> Option<(Session, O::Facts)> {
        loop {
            let (mut session, facts, since) = self.lock().pop()?;
            if !self.opener.record_timeline(&session) {
                continue;
            }
            let is_checked = self.limits.check_after.is_some_and(|after| since.elapsed() >= after);
            if !is_checked
                || wait_for_answer(CHECK_TIMEOUT, read_backend_pid(&mut session.connection)).await.is_ok()
            {
                return Some((session, facts));
            }
            // The connection or its server is gone: the other idle sessions are no more reliable.
            self.lock().clear();
            return None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Session, O::Facts, Instant)>> {
        // No change leaves the list inconsistent.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<O: SessionOpener> PooledSession<O> {
    /// Returns the session's connection.
    pub fn connection(&mut self) -> &mut PgConnection {
        &mut self.session.connection
    }

    /// Returns whether the session was opened for this use.
    pub fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    /// Returns the session to the pool.
    pub fn give_back(self) {
        self.pool.lock().push((self.session, self.facts, Instant::now()));
    }

    /// Closes the session after a failure, and the idle ones, which may be broken as well.
    pub fn close_all(self) {
        self.pool.lock().clear();
    }
}
