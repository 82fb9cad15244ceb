//! Sessions for single statements: each is opened as those for work are, to whichever host takes writes, and with the URL as its file has it then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::away::Away;
use super::connection::within;
use super::door::{Door, NoSession};
use super::session::{Session, process};

/// A session that has rested for longer is asked for a sign of life.
const FRESH: Duration = Duration::from_secs(1);
/// How long that is waited for: a server that takes longer is as good as away.
const LIFE: Duration = Duration::from_secs(1);

/// Sessions that rest, and places for those that are out.
#[derive(Clone)]
pub(crate) struct SessionPool(Arc<Inner>);

struct Inner {
    door: Door,
    application: String,
    places: Arc<Semaphore>,
    /// Longest wait for a place.
    wait: Duration,
    away: Away,
    /// The latest last, with the time of its return.
    resting: Mutex<Vec<(Session, Instant)>>,
}

/// A session that is out. It comes back only by [`Taken::give_back`]: after a statement that was not answered it goes with its connection.
pub(crate) struct Taken {
    session: Session,
    pool: Arc<Inner>,
    _place: OwnedSemaphorePermit,
}

impl std::fmt::Debug for SessionPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionPool").field("application", &self.0.application).finish_non_exhaustive()
    }
}

impl SessionPool {
    /// `most`: sessions at the same time; who comes when all are out waits for `wait` at most.
    pub(crate) fn new(door: Door, application: String, most: usize, wait: Duration) -> Self {
        let places = Arc::new(Semaphore::new(most));
        Self(Arc::new(Inner {
            door,
            application,
            places,
            wait,
            away: Away::default(),
            resting: Mutex::default(),
        }))
    }

    /// When no session could be opened.
    pub(crate) fn away(&self) -> Away {
        self.0.away.clone()
    }

    /// Takes a session; in a task of its own, which nobody drops half-way.
    ///
    /// # Errors
    /// When the server does not answer, is another cell's or an old one, or all sessions stay out.
    pub(crate) async fn take(&self) -> Result<Taken, NoSession> {
        let pool = &self.0;
        let place = tokio::time::timeout(pool.wait, Arc::clone(&pool.places).acquire_owned()).await;
        let place = place.map_err(|_| sqlx::Error::PoolTimedOut)?.map_err(|_| sqlx::Error::PoolClosed)?;
        let session = match pool.rested().await {
            Some(session) => session,
            None => pool.door.open(&pool.application).await.inspect_err(|_| pool.away.note())?,
        };
        Ok(Taken { session, pool: Arc::clone(pool), _place: place })
    }
}

impl Inner {
    /// One that rests, and is alive.
    async fn rested(&self) -> Option<Session> {
        let (mut session, since) = self.lock().pop()?;
        let is_alive =
            since.elapsed() < FRESH || within(LIFE, process(&mut session.connection)).await.is_ok();
        if is_alive && self.door.admits(&session) {
            return Some(session);
        }
        // Its server is gone, or was: the others know as little.
        self.lock().clear();
        None
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Session, Instant)>> {
        // Every change leaves the list whole.
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        &mut self.session.connection
    }

    /// The session is at rest again, for whoever comes next.
    pub(crate) fn give_back(self) {
        self.pool.lock().push((self.session, Instant::now()));
    }
}
