//! The console's sessions to PostgreSQL: four in total, with a limit of a few seconds per statement.
//!
//! A session is free again when the server has answered, not when a caller stops waiting: callers query in a task of their own
//! (`spawn_limited`), which a dropped page does not end.

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
const MAX_SESSIONS: usize = 4;
/// The server's limit of one statement: a longer query is too wide.
const STATEMENT_TIMEOUT: Duration = Duration::from_millis(2_500);
/// Limit for a connection: a slower server counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Limit for a connection and the first statements on it.
const OPEN_TIMEOUT: Duration = Duration::from_millis(1_500);

tokio::task_local! {
    /// Cancelled when the caller of this task stops waiting for it.
    static CANCELLATION: CancellationToken;
}

/// Time limit of a background task. The server ends statements long before; after this time it is gone, and the task gives up.
pub(crate) const TASK_TIMEOUT: Duration = Duration::from_secs(10);

/// Spawns a task that runs `work` to its end within [`TASK_TIMEOUT`], even if the caller stops waiting. Dropping the guard keeps it from
/// taking a session if it has none yet.
pub(crate) fn spawn_limited<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> (JoinHandle<Result<T, Elapsed>>, DropGuard) {
    let cancellation = CancellationToken::new();
    let work = CANCELLATION.scope(cancellation.clone(), tokio::time::timeout(TASK_TIMEOUT, work));
    (tokio::spawn(work), cancellation.drop_guard())
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
        let opening = async {
            let mut session = self.0.open("oncely console").await?;
            pg::prefer_indexes(&mut session.connection).await?;
            let abilities = pg::read_abilities(&mut session.connection).await?;
            Ok((session, abilities))
        };
        Ok(pg::wait_for_answer(OPEN_TIMEOUT, opening).await?)
    }

    fn record_timeline(&self, session: &Session) -> bool {
        self.0.record_timeline(session)
    }
}

impl Pool {
    /// Creates the pool; its time limits are those of the configuration, or shorter.
    pub(crate) fn new(config: &Config) -> Self {
        let settings = PgSettings {
            connect_timeout: CONNECT_TIMEOUT.min(config.postgres.connect_timeout),
            statement_timeout: STATEMENT_TIMEOUT.min(config.postgres.statement_timeout),
            lock_timeout: STATEMENT_TIMEOUT.min(config.postgres.lock_timeout),
            ..config.postgres.clone()
        };
        let factory = SessionFactory::new(settings, config.cell.clone(), Timelines::default());
        let limits = PoolLimits { sessions: MAX_SESSIONS, wait: None, check_after: Some(Duration::ZERO) };
        Self(SessionPool::with_opener(ConsoleOpener(factory), limits, LastOutage::default()))
    }

    /// Takes a session; waits if all are in use.
    ///
    /// # Errors
    /// If the server does not answer, is another cell's, or the caller has stopped waiting.
    pub(crate) async fn acquire(&self) -> Result<ConsoleSession, sqlx::Error> {
        let cancellation = CANCELLATION.try_with(CancellationToken::clone).unwrap_or_default();
        let permit = tokio::select! {
            biased;
            () = cancellation.cancelled() => return Err(sqlx::Error::PoolClosed),
            permit = self.0.wait_for_permit() => permit?,
        };
        // In a task of its own: if the caller stops waiting, the session stays in use until the server has answered.
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
