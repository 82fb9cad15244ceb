//! Sessions for the short transactions of leases: a few, for many runs.
//!
//! Each statement is said in a task of its own, to its end: a run that is dropped drops no question to the database half-way. Each may be said
//! again where its answer is lost, so it is, until it is answered.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use sqlx::PgConnection;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::failpoint;
use crate::fault::{Fault, FaultClass};
use crate::pg::{
    self, Away, Clock, Door, NoSession, PgFault, Session, classify, is_lease_lost, is_outage, passes,
};

/// How long keys are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseTime {
    /// A lease, from its claim or renewal on.
    pub(crate) lease: Duration,
    /// A run, from its claim on: no renewal goes beyond.
    pub(crate) max_run: Duration,
}

/// Why a statement has no answer.
#[derive(Debug)]
pub(crate) enum Said {
    /// The lease is lost.
    Lost,
    /// Nobody wants to know any more.
    Abandoned,
    /// It can't be done.
    Fault(Fault),
}

/// What becomes of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Somebody else gets it.
    Keep,
    /// A handler had it, and may have left settings in it.
    Close,
}

/// The sessions of one consumer.
pub(crate) struct Sessions {
    door: Door,
    application: String,
    clock: Clock,
    limit: Duration,
    places: Semaphore,
    /// Told of what keeps a statement from being answered, each time.
    stalled: Box<dyn Fn(&Fault) + Send + Sync>,
    resting: Mutex<Vec<Session>>,
    away: Away,
    /// It is known that nobody was kept from the server.
    has_contact: bool,
}

/// What is said to PostgreSQL, in one session.
pub(crate) type Statement<T, E> =
    Box<dyn for<'c> FnOnce(&'c mut Session) -> BoxFuture<'c, Result<T, E>> + Send>;

/// A session could not be had, or was lost: as an error of the statement.
fn away(error: NoSession) -> sqlx::Error {
    match error {
        NoSession::Postgres(error) => error,
        // Classified as an outage: it passes when the right server is back.
        other => sqlx::Error::Configuration(Box::new(other)),
    }
}

impl Sessions {
    /// `count` at the same time. `limit`: of an answer; `away`: shared by all sessions of a consumer; `has_contact`: nobody was kept from the
    /// server, whatever these sessions can know of it.
    pub(crate) fn new(
        (door, application, clock): (Door, String, Clock),
        limit: Duration,
        count: usize,
        (away, has_contact): (Away, bool),
        stalled: impl Fn(&Fault) + Send + Sync + 'static,
    ) -> Self {
        let places = Semaphore::new(count);
        let stalled = Box::new(stalled);
        Self {
            door,
            application,
            clock,
            limit,
            places,
            stalled,
            resting: Mutex::default(),
            away,
            has_contact,
        }
    }

    /// Longest wait for an answer to a statement of ours.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Says it once, to its end, whoever stops waiting for it. The session stays where PostgreSQL has only refused the statement.
    pub(crate) async fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        statement: Statement<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        let refusable: Statement<Result<T, sqlx::Error>, sqlx::Error> = Box::new(move |session| {
            Box::pin(async move {
                match statement(session).await {
                    Err(error) if error.as_database_error().is_some() && !is_outage(&error) => Ok(Err(error)),
                    answered => answered.map(Ok),
                }
            })
        });
        let (is_fresh, answered) = self.said(After::Keep, self.limit, refusable).await;
        if is_fresh && answered.is_err() {
            self.away.note();
        }
        answered?
    }

    /// The same, where a handler's own work is part of it: `limit` is what all of it may take. Statements of ours in it have limits of
    /// their own.
    pub(crate) async fn within<T, E>(
        self: &Arc<Self>,
        after: After,
        limit: Duration,
        statement: Statement<T, E>,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<sqlx::Error> + Send + 'static,
    {
        self.said(after, limit, statement).await.1
    }

    /// The same. Was its session opened for it, or could none be?
    async fn said<T, E>(
        self: &Arc<Self>,
        after: After,
        limit: Duration,
        statement: Statement<T, E>,
    ) -> (bool, Result<T, E>)
    where
        T: Send + 'static,
        E: From<sqlx::Error> + Send + 'static,
    {
        let sessions = Arc::clone(self);
        let said = tokio::spawn(failpoint::inherit(async move {
            let Ok(_place) = sessions.places.acquire().await else {
                return (false, Err(sqlx::Error::PoolClosed.into()));
            };
            let (is_fresh, mut session) = match sessions.rested() {
                Some(session) => (false, session),
                None => match sessions.open().await {
                    Ok(session) => (true, session),
                    Err(error) => {
                        sessions.away.note();
                        return (true, Err(away(error).into()));
                    }
                },
            };
            let answer = match tokio::time::timeout(limit, statement(&mut session)).await {
                Ok(Ok(answer)) => {
                    if after == After::Keep {
                        sessions.lock().push(session);
                    }
                    return (is_fresh, Ok(answer));
                }
                // In whatever state: its connection goes with it.
                Ok(Err(error)) => Err(error),
                Err(_) => {
                    let text = format!("no answer within {limit:?}");
                    Err(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text)).into())
                }
            };
            // The others may be as dead: what is said next is said in a session of now.
            sessions.lock().clear();
            (is_fresh, answer)
        }));
        said.await.unwrap_or_else(|error| {
            failpoint::ended(error);
            (false, Err(sqlx::Error::WorkerCrashed.into()))
        })
    }

    /// Says it until it is answered. `make` makes it anew each time; `until`: nobody wants to know any more.
    pub(crate) async fn say<T: Send + 'static>(
        self: &Arc<Self>,
        until: &CancellationToken,
        what: &str,
        make: impl Fn() -> Statement<T, sqlx::Error>,
    ) -> Result<T, Said> {
        let ask = || -> BoxFuture<'static, Result<T, sqlx::Error>> {
            let (sessions, statement) = (Arc::clone(self), make());
            Box::pin(async move { sessions.ask(statement).await })
        };
        self.until_answered(until, what, ask).await
    }

    /// Asks until it is answered; `until`: nobody wants to know any more.
    pub(crate) async fn until_answered<T>(
        &self,
        until: &CancellationToken,
        what: &str,
        ask: impl Fn() -> BoxFuture<'static, Result<T, sqlx::Error>>,
    ) -> Result<T, Said> {
        let mut backoff = Backoff::default();
        loop {
            let asked = Instant::now();
            let error = match ask().await {
                Ok(answer) => return Ok(answer),
                Err(error) if is_lease_lost(&error) => return Err(Said::Lost),
                Err(error) => error,
            };
            let (fault, is_stalled) = match classify(error) {
                // A session that was gone already says nothing of the server: the next one tells.
                PgFault::Outage(outage) => {
                    let fault = Fault::new(FaultClass::Environment, None, outage.to_string());
                    (fault, self.away.is_since(asked))
                }
                // What another transaction holds is no fault of PostgreSQL's.
                PgFault::Fault(fault) if passes(&fault) => {
                    let is_stalled = fault.class != FaultClass::Contention;
                    (fault, is_stalled)
                }
                PgFault::Fault(fault) => return Err(Said::Fault(fault)),
            };
            if is_stalled {
                self.stall(&fault);
            }
            tracing::warn!(application = %self.application, error = %fault, "{what}: PostgreSQL can't be asked; tried again");
            tokio::select! {
                biased;
                () = until.cancelled() => return Err(Said::Abandoned),
                () = tokio::time::sleep(backoff.next()) => {}
            }
        }
    }

    /// Something keeps a statement from being answered.
    pub(crate) fn stall(&self, fault: &Fault) {
        (self.stalled)(fault);
    }

    fn rested(&self) -> Option<Session> {
        let mut resting = self.lock();
        std::iter::from_fn(|| resting.pop()).find(|session| self.door.admits(session))
    }

    async fn open(&self) -> Result<Session, NoSession> {
        let mut session = self.door.open_for_handlers(&self.application).await?;
        session.clock = self.clock.clone();
        if self.has_contact {
            pg::within(self.limit, pg::vouch(&mut session.connection)).await?;
        }
        Ok(session)
    }

    /// Closes what rests.
    pub(crate) async fn close(&self) {
        let resting = std::mem::take(&mut *self.lock());
        for session in resting {
            session.close().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Session>> {
        // Every change leaves the list whole.
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A statement of our own.
pub(crate) fn statement<T, F>(said: F) -> Statement<T, sqlx::Error>
where
    F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>> + Send + 'static,
{
    Box::new(move |session| said(&mut session.connection))
}
