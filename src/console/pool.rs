//! The console's sessions to PostgreSQL: four, whoever asks, each statement within a few seconds.
//!
//! A place is free again when the server has answered, and not when somebody stops waiting: whoever asks does it in a task of its own
//! ([`beside`]), which a page that is dropped does not end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::error::Elapsed;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::Config;
use crate::pg::{self, Abilities, PgSettings, Session};

/// Sessions at the same time.
const SESSIONS: usize = 4;
/// The server's limit of one statement: a question that takes longer is too wide.
const STATEMENT: Duration = Duration::from_millis(2_500);
/// For a new session, and for the sign of life of one that has rested: a server that takes longer is as good as away.
const LIFE: Duration = Duration::from_secs(1);

tokio::task_local! {
    /// Nobody waits any more for what this task does.
    static FORGOTTEN: CancellationToken;
}

/// The server ends a statement long before: after this nobody is there, and what waits for an answer lets go.
pub(crate) const DEAD: Duration = Duration::from_secs(10);

/// Does something to its end, whoever stops waiting for it. What has no session by then does not take one any more: drop the guard.
pub(crate) fn beside<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> (JoinHandle<Result<T, Elapsed>>, DropGuard) {
    let forgotten = CancellationToken::new();
    let work = FORGOTTEN.scope(forgotten.clone(), tokio::time::timeout(DEAD, work));
    (tokio::spawn(work), forgotten.drop_guard())
}

/// Sessions that rest, and places for those that are out.
pub(crate) struct Pool(Arc<Inner>);

struct Inner {
    settings: PgSettings,
    cell: String,
    places: Arc<Semaphore>,
    resting: Mutex<Vec<(Session, Abilities)>>,
}

/// A session that is out. It comes back only by [`Lease::give_back`]: after a question that failed it is gone with its connection.
pub(crate) struct Lease {
    pub(crate) session: Session,
    pub(crate) abilities: Abilities,
    pool: Arc<Inner>,
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
        Self(Arc::new(Inner {
            settings,
            cell: config.cell.clone(),
            places: Arc::new(Semaphore::new(SESSIONS)),
            resting: Mutex::default(),
        }))
    }

    /// Takes a session, and waits for one where all are out.
    ///
    /// # Errors
    /// When the server does not answer, is another cell's, or nobody waits any more.
    pub(crate) async fn lease(&self) -> Result<Lease, sqlx::Error> {
        let closed = |_| sqlx::Error::PoolClosed;
        let places = Arc::clone(&self.0.places);
        let forgotten = FORGOTTEN.try_with(CancellationToken::clone).unwrap_or_default();
        let place = tokio::select! {
            biased;
            () = forgotten.cancelled() => return Err(sqlx::Error::PoolClosed),
            place = places.acquire_owned() => place.map_err(closed)?,
        };
        // A task of its own: whoever stops waiting leaves it the place until the server has answered.
        let pool = Arc::clone(&self.0);
        let opening = tokio::spawn(async move { pool.session(place).await });
        match opening.await {
            Ok(lease) => lease,
            Err(_) => Err(sqlx::Error::WorkerCrashed),
        }
    }

    /// Are all sessions out?
    pub(crate) fn is_busy(&self) -> bool {
        self.0.places.available_permits() == 0
    }
}

impl Inner {
    async fn session(self: Arc<Self>, place: OwnedSemaphorePermit) -> Result<Lease, sqlx::Error> {
        let resting = self.lock().pop();
        if let Some((mut session, abilities)) = resting {
            match pg::within(LIFE, pg::process(&mut session.connection)).await {
                Ok(_) => return Ok(Lease { session, abilities, pool: self, _place: place }),
                // Its server is gone, or was: the others know as little.
                Err(_) => self.lock().clear(),
            }
        }
        let (session, abilities) = pg::within(LIFE + LIFE / 2, self.open()).await?;
        Ok(Lease { session, abilities, pool: self, _place: place })
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
        // Every change leaves the list whole.
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    /// The session is at rest again, for whoever comes next.
    pub(crate) fn give_back(self) {
        self.pool.lock().push((self.session, self.abilities));
    }
}
