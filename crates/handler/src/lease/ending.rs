//! Ends a run under a lease: completed, failed, or given back.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use sqlx::PgConnection;

use super::failed::{RunError, check_transaction};
use super::finish::FinishWrite;
use super::{Finish, Lease};
use oncely_core::backoff::Backoff;
use oncely_core::encryption::Place;
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::fingerprint::Fingerprint;
use oncely_core::reason::Reason;
use oncely_failpoint::step as at;
use oncely_lease::handler_error::HandlerError;
use oncely_lease::{RunCompletion, SessionReuse, Statement, StatementError, statement};
use oncely_postgres::{self as pg, LeaseFailOutcome, LeaseFailure, PgFault, Session};

/// Failure of a run that its message is charged with.
#[derive(Clone, Debug)]
pub struct RunFailure {
    #[doc(hidden)]
    pub error: String,
    /// Reason for giving it up at once.
    #[doc(hidden)]
    pub reason: Option<Reason>,
    #[doc(hidden)]
    pub error_code: Option<String>,
    #[doc(hidden)]
    pub max_attempts: u32,
    /// Delay of the copy that comes back.
    #[doc(hidden)]
    pub delay: Duration,
}

/// Result of the end of a run.
#[derive(Debug)]
pub enum RunEndResult<T> {
    #[doc(hidden)]
    Done(T),
    /// Another run has the key.
    Lost,
    /// The process ends first.
    Abandoned,
}

impl Lease {
    /// Completes the key, with the run's own writes: tried until it is done, or lost. An error of the writes is the run's failure: its
    /// calls of other systems are recorded by its steps, and the next run only writes again. `fingerprint`: of the payload.
    #[doc(hidden)]
    pub async fn complete(
        &self,
        finish: &Finish,
        refused: bool,
        fingerprint: Option<Fingerprint>,
    ) -> Result<RunEndResult<()>, Fault> {
        let mut backoff = Backoff::default();
        let stored = self.stored_response(finish, refused)?;
        loop {
            let done = match &finish.write {
                Some(write) => {
                    let (me, write) = (self.clone(), Arc::clone(write));
                    let response = stored.clone();
                    let statement: Statement<(), RunError> = Box::new(move |session| {
                        Box::pin(complete_with(me, write, response, refused, session))
                    });
                    self.store().writes.within(SessionReuse::Close, self.writing_time(), statement).await
                }
                None => {
                    let (held, response) = (self.run().held().clone(), stored.clone());
                    let trail = Arc::clone(&self.trail);
                    let end = RunCompletion { held, fingerprint, response, refused, trail };
                    at("lease.complete.before");
                    // Written and committed together with others: no code runs between the two steps.
                    at("lease.commit.before");
                    let done = self.store().complete(end).await;
                    if done.is_ok() {
                        at("lease.commit.after");
                    }
                    done.map_err(RunError::Ours)
                }
            };
            if done.is_err() && finish.write.is_some() {
                // It could not be renewed while the transaction held its row.
                let _told_by_the_next_statement = self.run().renew().await;
            }
            let fault = match done {
                Ok(()) => return Ok(RunEndResult::Done(())),
                Err(RunError::Ours(error)) if pg::is_lease_lost(&error) => {
                    // The key is another run's; the outcome of this run's call belongs to its step.
                    self.run().pay_owed().await;
                    return Ok(RunEndResult::Lost);
                }
                // A panic of the handler's write, which no further try would avoid.
                Err(RunError::Ours(sqlx::Error::WorkerCrashed)) => {
                    return Err(Fault::new(FaultClass::Transient, None, "the write of the finish panicked"));
                }
                Err(RunError::Ours(error)) => match pg::classify(error) {
                    PgFault::Outage(outage) => Fault::new(FaultClass::Environment, None, outage.to_string()),
                    // The calls of other systems have happened, and must be recorded: the fault passes, or the lease is lost.
                    PgFault::Fault(fault) if pg::passes(&fault) => fault,
                    PgFault::Fault(fault) => return Err(fault),
                },
                Err(RunError::Handler(error)) => match error.into_fault() {
                    PgFault::Outage(outage) => Fault::new(FaultClass::Environment, None, outage.to_string()),
                    PgFault::Fault(fault) => return Err(fault),
                },
            };
            self.store().own.stall(&fault);
            tracing::warn!(token = self.token(), error = %fault, "cannot record a finished run; retrying");
            tokio::select! {
                biased;
                () = self.run().abandon().cancelled() => return Ok(RunEndResult::Abandoned),
                () = tokio::time::sleep(backoff.next_pause()) => {}
            }
        }
    }

    /// Returns the stored form of the response. The reason of a refusal is in the trail unencrypted, and here as well. A response that is
    /// too large is the run's failure, whether or not it is encrypted.
    fn stored_response(&self, finish: &Finish, refused: bool) -> Result<Option<Value>, Fault> {
        let Some(response) = finish.response.clone() else { return Ok(None) };
        let bytes = pg::json_text(&response).len();
        if bytes > pg::LARGEST_JSON {
            let text = format!("the response has {bytes} bytes as JSON; {} are allowed", pg::LARGEST_JSON);
            return Err(Fault::new(FaultClass::Poison, None, text));
        }
        if refused {
            return Ok(Some(response));
        }
        Ok(match self.run().sealer().seal(&Place::response(&self.run().held().identity), response) {
            Ok(stored) => Some(stored),
            // Never stored unencrypted. The calls of other systems have happened, so the key is completed all the same.
            Err(error) => {
                tracing::error!(token = self.token(), %error, "response not stored: encryption failed");
                None
            }
        })
    }

    /// Ends a run that failed.
    #[doc(hidden)]
    pub async fn fail(&self, failure: RunFailure) -> RunEndResult<LeaseFailOutcome> {
        self.run().pay_owed().await;
        let failed = self
            .run_until_answered("record a failed run", move |me, connection| {
                let failure = failure.clone();
                Box::pin(async move {
                    let failure = LeaseFailure {
                        error: &failure.error,
                        reason: failure.reason,
                        error_code: failure.error_code.as_deref(),
                        max_attempts: failure.max_attempts,
                        delay: failure.delay,
                        // Charging it was decided before.
                        is_charged: true,
                    };
                    at("lease.fail.before");
                    let held = me.run().held().as_row();
                    let failed = pg::fail_lease(connection, held, &failure, me.trail.as_trace()).await;
                    at("lease.fail.after");
                    failed
                })
            })
            .await;
        match failed {
            Ok(LeaseFailOutcome::Lost) | Err(StatementError::Lost) => RunEndResult::Lost,
            Ok(failed) => RunEndResult::Done(failed),
            Err(StatementError::Unavailable(_)) => RunEndResult::Abandoned,
            Err(StatementError::Refused(fault)) => {
                // Its lease runs out, and the next copy takes the key over.
                tracing::error!(error = %fault, "cannot record a failed run");
                RunEndResult::Lost
            }
        }
    }

    /// Gives the key back for its next run. False: another run has it; `None`: PostgreSQL did not answer, and the lease runs out.
    #[doc(hidden)]
    pub async fn release(&self) -> Option<bool> {
        self.run().pay_owed().await;
        let released = self
            .run_until_answered("release a lease", |me, connection| {
                Box::pin(async move { pg::release_lease(connection, me.run().held().as_row()).await })
            })
            .await;
        match released {
            Ok(was_held) => Some(was_held),
            Err(error) => {
                tracing::debug!(?error, "lease not released; it will expire");
                None
            }
        }
    }

    /// Repeats a statement until it is answered, or the process does not wait any longer.
    async fn run_until_answered<T: Send + 'static>(
        &self,
        what: &str,
        make: impl for<'c> Fn(Lease, &'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
        + Clone
        + Send
        + 'static,
    ) -> Result<T, StatementError> {
        let statement_for = || {
            let (me, make) = (self.clone(), make.clone());
            statement(move |connection| make(me, connection))
        };
        self.store().own.run_until_answered(self.run().abandon(), what, statement_for).await
    }
}

/// Tries the completion once, with writes of the run's own in its transaction.
async fn complete_with(
    me: Lease,
    write: Arc<FinishWrite>,
    response: Option<Value>,
    refused: bool,
    session: &mut Session,
) -> Result<(), RunError> {
    let limit = me.store().own.limit();
    let mut transaction = pg::within(limit, pg::begin(&mut session.connection)).await?;
    at("lease.complete.before");
    let (held, trace) = (me.run().held().as_row(), me.trail.as_trace());
    let completed = pg::complete_lease(&mut transaction, held, response.as_ref(), refused, true, trace);
    if !pg::within(limit, completed).await? {
        // Done by an earlier COMMIT with a lost answer. This one waits for a synchronous standby, if there is one.
        pg::within(limit, transaction.commit()).await?;
        return Ok(());
    }
    let own = pg::within(limit, pg::transaction_id(&mut transaction)).await?;
    pg::within(limit, pg::enter_handler(&mut transaction, pg::LockWait::Session)).await?;
    me.in_time(write(&mut transaction)).await?;
    check_transaction(&mut transaction, &own).await?;
    at("lease.commit.before");
    // Includes the writes' deferred work: a timeout there is an error of the writes.
    transaction.commit().await.map_err(|error| match pg::is_cancelled(&error) {
        true => RunError::Handler(HandlerError::Database(error)),
        false => RunError::Ours(error),
    })?;
    at("lease.commit.after");
    Ok(())
}
