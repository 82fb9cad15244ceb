//! The console's sessions to PostgreSQL: four in total, with a limit of a few seconds per statement.
//!
//! A place is free again when the server has answered, not when a caller stops waiting: callers query in a task of their own (`spawn_limited`),
//! which a dropped page does not end.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::error::Elapsed;
use tokio_util::sync::{CancellationToken, DropGuard};

use oncely_config::Config;
use oncely_postgres::{
    self as pg, Abilities, LastOutage, NoSession, PgSettings, PoolLimits, Session, SessionFactory,
    SessionOpener, SessionPool, Timelines,
};

/// Maximum number of sessions.
const SESSIONS: usize = 4;
/// The server's limit of one statement: a longer query is too wide.
const STATEMENT: Duration = Duration::from_millis(2_500);
/// Limit for a connection: a slower server counts as unreachable.
const CONNECT: Duration = Duration::from_secs(1);
/// Limit for a connection and the first statements on it.
const OPEN: Duration = Duration::from_millis(1_500);

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

/// The console's pool.
pub(crate) struct Pool(SessionPool<ConsoleOpener>);

/// A session of the console in use, with the abilities of its login.
pub(crate) type ConsoleSession = pg::PooledSession<ConsoleOpener>;

/// Opens the console's sessions.
pub(crate) struct ConsoleOpener(SessionFactory);

impl SessionOpener for ConsoleOpener {
    type Facts = Abilities;

    async fn open(&self) -> Result<(Session, Abilities), NoSession> {
        let opened = async {
            let mut session = self.0.open("oncely console").await?;
            pg::read_by_index(&mut session.connection).await?;
            let abilities = pg::abilities(&mut session.connection).await?;
            Ok((session, abilities))
        };
        Ok(pg::within(OPEN, opened).await?)
    }

    fn admits(&self, session: &Session) -> bool {
        self.0.admits(session)
    }
}

impl Pool {
    pub(crate) fn new(config: &Config) -> Self {
        let settings = PgSettings {
            connect_timeout: CONNECT.min(config.postgres.connect_timeout),
            statement_timeout: STATEMENT.min(config.postgres.statement_timeout),
            lock_timeout: STATEMENT.min(config.postgres.lock_timeout),
            ..config.postgres.clone()
        };
        let factory = SessionFactory::new(settings, config.cell.clone(), Timelines::default());
        let limits = PoolLimits { sessions: SESSIONS, wait: None, check_after: Some(Duration::ZERO) };
        Self(SessionPool::with_opener(ConsoleOpener(factory), limits, LastOutage::default()))
    }

    /// Takes a session; waits if all are in use.
    ///
    /// # Errors
    /// If the server does not answer, is another cell's, or no caller waits any more.
    pub(crate) async fn acquire(&self) -> Result<ConsoleSession, sqlx::Error> {
        let forgotten = FORGOTTEN.try_with(CancellationToken::clone).unwrap_or_default();
        let permit = tokio::select! {
            biased;
            () = forgotten.cancelled() => return Err(sqlx::Error::PoolClosed),
            permit = self.0.permit() => permit?,
        };
        // In a task of its own: if the caller stops waiting, the place stays taken until the server has answered.
        let pool = self.0.clone();
        match tokio::spawn(async move { pool.acquire_with(permit).await }).await {
            Ok(pooled) => Ok(pooled?),
            Err(_) => Err(sqlx::Error::WorkerCrashed),
        }
    }

    /// Returns whether all sessions are in use.
    pub(crate) fn is_busy(&self) -> bool {
        self.0.is_exhausted()
    }
}
