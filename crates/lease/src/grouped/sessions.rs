//! Sessions for the short transactions of leases: a few, shared by many runs.
//!
//! Each statement runs in a task of its own, to its end: dropping a run cancels no statement half-way. Statements are idempotent, so after
//! a lost answer a statement is retried until it is answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;

use crate::error::StoreError;
use oncely_core::backoff::Backoff;
use oncely_core::fault::{Fault, FaultClass};
use oncely_failpoint as failpoint;
use oncely_postgres::{
    self as pg, DatabaseClock, LastOutage, NoSession, PgFault, PoolLimits, Session, SessionFactory,
    SessionOpener, SessionPool, classify, is_lease_lost, is_temporary,
};

/// The reason why a statement has no answer.
#[derive(Debug)]
pub enum StatementError {
    /// The lease is lost.
    Lost,
    /// A later try may succeed.
    Unavailable(Fault),
    /// PostgreSQL refuses the statement.
    Refused(Fault),
}

impl From<StatementError> for StoreError {
    fn from(error: StatementError) -> Self {
        match error {
            StatementError::Lost => Self::Lost,
            StatementError::Unavailable(fault) => Self::unavailable(anyhow::anyhow!("{fault}")),
            StatementError::Refused(fault) => Self::from_fault(&fault),
        }
    }
}

/// The treatment of a session after its statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionReuse {
    /// It is reused.
    Keep,
    /// It is closed: a handler used it and may have left settings in it.
    Close,
}

/// The sessions of one consumer.
pub struct LeaseSessions {
    application: String,
    limit: Duration,
    pool: SessionPool<LeaseOpener>,
    /// Called with each fault that keeps a statement from being answered.
    on_stall: Box<dyn Fn(&Fault) + Send + Sync>,
}

/// Opens sessions for handlers under leases.
struct LeaseOpener {
    factory: SessionFactory,
    application: String,
    clock: DatabaseClock,
    limit: Duration,
    /// Whether the server is known to have been reachable all the time, so that new sessions may take over at once (see
    /// `pg::backdate_session`).
    has_contact: bool,
}

impl SessionOpener for LeaseOpener {
    type Facts = ();

    async fn open(&self) -> Result<(Session, ()), NoSession> {
        let mut session = self.factory.open_for_handlers(&self.application).await?;
        session.clock = self.clock.clone();
        if self.has_contact {
            pg::wait_for_answer(self.limit, pg::backdate_session(&mut session.connection)).await?;
        }
        Ok((session, ()))
    }

    fn record_timeline(&self, session: &Session) -> bool {
        self.factory.record_timeline(session)
    }
}

/// A fault that the statement's own code has classified.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct RepeatableFault(Fault);

/// Builds the error of a statement that is retried after this fault, regardless of its class, and is no outage. It is reported as a stall
/// unless it is another transaction's lock.
#[doc(hidden)]
pub fn build_repeatable_error(fault: Fault) -> sqlx::Error {
    sqlx::Error::Configuration(Box::new(RepeatableFault(fault)))
}

/// Finds the fault of an error that [`build_repeatable_error`] has built; `None` for any other error.
fn find_repeatable_fault(error: &sqlx::Error) -> Option<&Fault> {
    match error {
        sqlx::Error::Configuration(inner) => inner.downcast_ref::<RepeatableFault>().map(|fault| &fault.0),
        _ => None,
    }
}

/// A statement of the lease protocol, to be run in one session.
pub type Statement<T, E> = Box<dyn for<'c> FnOnce(&'c mut Session) -> BoxFuture<'c, Result<T, E>> + Send>;

impl LeaseSessions {
    /// Creates up to `count` sessions. `limit` is the time limit of a statement; `last_outage` is shared by all sessions of a consumer;
    /// `has_contact` is set if the server is known to have been reachable for all holders, whether or not these sessions can tell.
    #[doc(hidden)]
    pub fn new(
        (factory, application, clock): (SessionFactory, String, DatabaseClock),
        limit: Duration,
        count: usize,
        (last_outage, has_contact): (LastOutage, bool),
        on_stall: impl Fn(&Fault) + Send + Sync + 'static,
    ) -> Self {
        // A session that was closed while idle is found out by the statement, which is repeated.
        let limits = PoolLimits { sessions: count, wait: None, check_after: None };
        let opener = LeaseOpener { factory, application: application.clone(), clock, limit, has_contact };
        let pool = SessionPool::with_opener(opener, limits, last_outage);
        Self { application, limit, pool, on_stall: Box::new(on_stall) }
    }

    /// Returns the time limit of a statement of the protocol.
    #[doc(hidden)]
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Runs a statement once. It is carried to its end even if the caller is dropped. The session is kept if PostgreSQL has only refused
    /// the statement.
    pub(crate) async fn run_once<T: Send + 'static>(
        self: &Arc<Self>,
        statement: Statement<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        let refusable: Statement<Result<T, sqlx::Error>, sqlx::Error> = Box::new(move |session| {
            Box::pin(async move {
                match statement(session).await {
                    Err(error) if error.as_database_error().is_some() && !pg::ends_session(&error) => {
                        Ok(Err(error))
                    }
                    result => result.map(Ok),
                }
            })
        });
        let (is_fresh, result) = self.run_statement(SessionReuse::Keep, self.limit, refusable).await;
        // A statement that has to be repeated for another reason shows that the server answers.
        if is_fresh && matches!(&result, Err(error) if !matches!(error, sqlx::Error::Configuration(_))) {
            self.pool.last_outage().record();
        }
        result?
    }

    /// Runs a statement that includes a handler's work, once; it is carried to its end even if the caller is dropped. `limit` covers both.
    /// The protocol's statements in it have limits of their own.
    #[doc(hidden)]
    pub async fn run_with_handler<T, E>(
        self: &Arc<Self>,
        reuse: SessionReuse,
        limit: Duration,
        statement: Statement<T, E>,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<sqlx::Error> + Send + 'static,
    {
        self.run_statement(reuse, limit, statement).await.1
    }

    /// Runs a statement once; it is carried to its end even if the caller is dropped. Also returns whether a session was opened for it,
    /// successfully or not.
    async fn run_statement<T, E>(
        self: &Arc<Self>,
        reuse: SessionReuse,
        limit: Duration,
        statement: Statement<T, E>,
    ) -> (bool, Result<T, E>)
    where
        T: Send + 'static,
        E: From<sqlx::Error> + Send + 'static,
    {
        let sessions = Arc::clone(self);
        let task = tokio::spawn(failpoint::inherit(async move {
            let mut pooled = match sessions.pool.acquire().await {
                Ok(pooled) => pooled,
                Err(error) => return (true, Err(sqlx::Error::from(error).into())),
            };
            let is_fresh = pooled.is_fresh();
            let result = match tokio::time::timeout(limit, statement(&mut pooled.session)).await {
                Ok(Ok(value)) => {
                    if reuse == SessionReuse::Keep {
                        pooled.give_back();
                    }
                    return (is_fresh, Ok(value));
                }
                // The session is in an unknown state: its connection is closed.
                Ok(Err(error)) => Err(error),
                Err(_) => {
                    let text = format!("no answer within {limit:?}");
                    Err(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text)).into())
                }
            };
            pooled.close_all();
            (is_fresh, result)
        }));
        task.await.unwrap_or_else(|error| {
            failpoint::propagate_end(error);
            (false, Err(sqlx::Error::WorkerCrashed.into()))
        })
    }

    /// Retries a statement until it is answered. Once `until` is cancelled, returns the last [`StatementError::Unavailable`]. `build`
    /// builds the statement for each try; `action` is for logs.
    #[doc(hidden)]
    pub async fn run_until_answered<T: Send + 'static>(
        self: &Arc<Self>,
        until: &CancellationToken,
        action: &str,
        build: impl Fn() -> Statement<T, sqlx::Error>,
    ) -> Result<T, StatementError> {
        let call = || -> BoxFuture<'static, Result<T, sqlx::Error>> {
            let (sessions, statement) = (Arc::clone(self), build());
            Box::pin(async move { sessions.run_once(statement).await })
        };
        self.retry_until_answered(until, action, call).await
    }

    /// Retries `call` until it is answered; `action` is for logs. Once `until` is cancelled, returns the last
    /// [`StatementError::Unavailable`].
    #[doc(hidden)]
    pub async fn retry_until_answered<T>(
        &self,
        until: &CancellationToken,
        action: &str,
        call: impl Fn() -> BoxFuture<'static, Result<T, sqlx::Error>>,
    ) -> Result<T, StatementError> {
        let mut backoff = Backoff::default();
        loop {
            let issued_at = Instant::now();
            let error = match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) => self.classify_error(issued_at, error),
            };
            let StatementError::Unavailable(fault) = &error else { return Err(error) };
            tracing::warn!(application = %self.application, error = %fault,
                "cannot {action}: no answer from PostgreSQL; retrying");
            tokio::select! {
                biased;
                () = until.cancelled() => return Err(error),
                () = tokio::time::sleep(backoff.next_pause()) => {}
            }
        }
    }

    /// Classifies the error of a statement issued at `issued_at`, and reports a fault that keeps it from being answered.
    pub(crate) fn classify_error(&self, issued_at: Instant, error: sqlx::Error) -> StatementError {
        if is_lease_lost(&error) {
            return StatementError::Lost;
        }
        let (fault, is_outage) = match (find_repeatable_fault(&error).cloned(), classify(error)) {
            (Some(fault), _) => (fault, false),
            (None, PgFault::Outage(outage)) => {
                (Fault::new(FaultClass::Environment, None, outage.to_string()), true)
            }
            (None, PgFault::Fault(fault)) if is_temporary(&fault) => (fault, false),
            (None, PgFault::Fault(fault)) => return StatementError::Refused(fault),
        };
        let is_stalled = match is_outage {
            // A session that was already lost is no evidence about the server: the next one is.
            true => self.pool.last_outage().is_since(issued_at),
            // A lock of another transaction is not a fault of PostgreSQL.
            false => fault.class != FaultClass::Contention,
        };
        if is_stalled {
            self.report_stall(&fault);
        }
        StatementError::Unavailable(fault)
    }

    /// Reports a fault that keeps statements from being answered.
    #[doc(hidden)]
    pub fn report_stall(&self, fault: &Fault) {
        (self.on_stall)(fault);
    }

    /// Closes the idle sessions.
    pub(crate) async fn close(&self) {
        self.pool.close_idle().await;
    }
}

/// Builds a statement of the protocol that uses the session's connection alone.
#[doc(hidden)]
pub fn build_statement<T, F>(run: F) -> Statement<T, sqlx::Error>
where
    F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>> + Send + 'static,
{
    Box::new(move |session| run(&mut session.connection))
}
