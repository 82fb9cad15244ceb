//! The console's sessions to PostgreSQL: four, whoever asks, each statement within a few seconds.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::config::Config;
use crate::pg::{self, Abilities, PgSettings, Session};

/// Sessions at the same time.
const SESSIONS: usize = 4;
/// The server's limit of one statement: a question that takes longer is too wide.
const STATEMENT: Duration = Duration::from_millis(2_500);
/// For a new session, and for the sign of life of one that has rested: a server that takes longer is as good as away.
const LIFE: Duration = Duration::from_secs(1);

/// Sessions that rest, and places for those that are out.
pub(crate) struct Pool {
    settings: PgSettings,
    cell: String,
    places: Semaphore,
    resting: Mutex<Vec<(Session, Abilities)>>,
}

/// A session that is out. It comes back only by [`Lease::give_back`]: dropped in the middle of a question, or after one that failed, it is
/// gone with its connection.
pub(crate) struct Lease<'a> {
    pub(crate) session: Session,
    pub(crate) abilities: Abilities,
    pool: &'a Pool,
    _place: SemaphorePermit<'a>,
}

impl Pool {
    pub(crate) fn new(config: &Config) -> Self {
        let settings = PgSettings {
            connect_timeout: LIFE.min(config.postgres.connect_timeout),
            statement_timeout: STATEMENT.min(config.postgres.statement_timeout),
            lock_timeout: STATEMENT.min(config.postgres.lock_timeout),
            ..config.postgres.clone()
        };
        Self {
            settings,
            cell: config.cell.clone(),
            places: Semaphore::new(SESSIONS),
            resting: Mutex::default(),
        }
    }

    /// Takes a session, and waits for one where all are out. Dropped while it waits or connects, nothing is lost but that connection.
    ///
    /// # Errors
    /// When the server does not answer, or is another cell's.
    pub(crate) async fn lease(&self) -> Result<Lease<'_>, sqlx::Error> {
        let closed = |_| sqlx::Error::PoolClosed;
        let place = self.places.acquire().await.map_err(closed)?;
        let lease = |(session, abilities)| Lease { session, abilities, pool: self, _place: place };
        let resting = self.lock().pop();
        if let Some((mut session, abilities)) = resting {
            match pg::within(LIFE, pg::process(&mut session.connection)).await {
                Ok(_) => return Ok(lease((session, abilities))),
                // Its server is gone, or was: the others know as little.
                Err(_) => self.lock().clear(),
            }
        }
        let opened = pg::within(LIFE + LIFE / 2, self.open()).await?;
        Ok(lease(opened))
    }

    /// Are all sessions out?
    pub(crate) fn is_busy(&self) -> bool {
        self.places.available_permits() == 0
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

impl Lease<'_> {
    /// The session is at rest again, for whoever comes next.
    pub(crate) fn give_back(self) {
        self.pool.lock().push((self.session, self.abilities));
    }
}
