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
use oncely_lease::{RunCompletion, SessionReuse, Statement, StatementError, build_statement};
use oncely_postgres::{self as pg, LeaseFailOutcome, LeaseFailure, PgFault, Session};

/// Failure of a run, charged to its message.
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
    /// The process ends before PostgreSQL has answered.
    Abandoned,
}

impl Lease {
    /// Completes the key, with the run's own writes. Retries until it is done, the lease is lost, or the process no longer waits for it. An
    /// error of the writes is the run's failure: its calls of other systems are recorded by its steps, and the next run only writes again.
    /// `fingerprint`: of the payload.
    #[doc(hidden)]
    pub async fn complete(
        &self,
        finish: &Finish,
        is_refused: bool,
        fingerprint: Option<Fingerprint>,
    ) -> Result<RunEndResult<()>, Fault> {
        let mut backoff = Backoff::default();
        let sealed = self.seal_response(finish, is_refused)?;
        loop {
            let result = match &finish.write {
                Some(write) => {
                    let (lease, write) = (self.clone(), Arc::clone(write));
                    let response = sealed.clone();
                    let statement: Statement<(), RunError> = Box::new(move |session| {
                        Box::pin(complete_with_writes(lease, write, response, is_refused, session))
                    });
                    self.store()
                        .writes
                        .run_with_handler(SessionReuse::Close, self.transaction_limit(), statement)
                        .await
                }
                None => {
                    let (lease_id, response) = (self.run().lease_id().clone(), sealed.clone());
                    let trail = Arc::clone(&self.trail);
                    let completion = RunCompletion { lease_id, fingerprint, response, is_refused, trail };
                    at("lease.complete.before");
                    // Written and committed together with others: no code runs between the two steps.
                    at("lease.commit.before");
                    let result = self.store().complete(completion).await;
                    if result.is_ok() {
                        at("lease.commit.after");
                    }
                    result.map_err(RunError::Own)
                }
            };
            if result.is_err() && finish.write.is_some() {
                // It could not be renewed while the transaction held its row.
                let _reported_by_next_statement = self.run().renew().await;
            }
            let fault = match result {
                Ok(()) => return Ok(RunEndResult::Done(())),
                Err(RunError::Own(error)) if pg::is_lease_lost(&error) => {
                    // The key is another run's; the outcome of this run's call belongs to its step.
                    self.run().store_unrecorded_outcomes().await;
                    return Ok(RunEndResult::Lost);
                }
                // A panic of the handler's write, which no further try would avoid.
                Err(RunError::Own(sqlx::Error::WorkerCrashed)) => {
                    return Err(Fault::new(FaultClass::Transient, None, "the write of the finish panicked"));
                }
                Err(RunError::Own(error)) => match pg::classify(error) {
                    PgFault::Outage(outage) => Fault::new(FaultClass::Environment, None, outage.to_string()),
                    // The calls of other systems have happened, and must be recorded: the fault passes, or the lease is lost.
                    PgFault::Fault(fault) if pg::is_temporary(&fault) => fault,
                    PgFault::Fault(fault) => return Err(fault),
                },
                Err(RunError::Handler(error)) => match error.into_fault() {
                    PgFault::Outage(outage) => Fault::new(FaultClass::Environment, None, outage.to_string()),
                    PgFault::Fault(fault) => return Err(fault),
                },
            };
            self.store().own.report_stall(&fault);
            tracing::warn!(token = self.token(), error = %fault, "cannot record a finished run; retrying");
            tokio::select! {
                biased;
                () = self.run().abandon_token().cancelled() => return Ok(RunEndResult::Abandoned),
                () = tokio::time::sleep(backoff.next_pause()) => {}
            }
        }
    }

    /// Converts the response to its stored form: encrypted if that is configured, but not the reason of a refusal, which is in the trail
    /// unencrypted as well. A response that is too large is the run's failure. Returns `None` without a response, or if it can't be
    /// encrypted, which is logged.
    fn seal_response(&self, finish: &Finish, is_refused: bool) -> Result<Option<Value>, Fault> {
        let Some(response) = finish.response.clone() else { return Ok(None) };
        let bytes = pg::to_json_text(&response).len();
        if bytes > pg::MAX_JSON_BYTES {
            let text = format!("the response has {bytes} bytes as JSON; {} are allowed", pg::MAX_JSON_BYTES);
            return Err(Fault::new(FaultClass::Poison, None, text));
        }
        if is_refused {
            return Ok(Some(response));
        }
        Ok(match self.run().sealer().seal(&Place::response(&self.run().lease_id().identity), response) {
            Ok(sealed) => Some(sealed),
            // Never stored unencrypted. The calls of other systems have happened, so the key is completed all the same.
            Err(error) => {
                tracing::error!(token = self.token(), %error, "response not stored: encryption failed");
                None
            }
        })
    }

    /// Records that the run failed. Retries until the failure is recorded, the lease is lost, or the process no longer waits for it.
    #[doc(hidden)]
    pub async fn fail(&self, failure: RunFailure) -> RunEndResult<LeaseFailOutcome> {
        self.run().store_unrecorded_outcomes().await;
        let outcome = self
            .run_until_answered("record a failed run", move |lease, connection| {
                let failure = failure.clone();
                Box::pin(async move {
                    let failure = LeaseFailure {
                        error: &failure.error,
                        reason: failure.reason,
                        error_code: failure.error_code.as_deref(),
                        max_attempts: failure.max_attempts,
                        delay: failure.delay,
                        // The caller has decided to charge it.
                        is_charged: true,
                    };
                    at("lease.fail.before");
                    let lease_id = lease.run().lease_id().as_row();
                    let outcome =
                        pg::fail_lease(connection, lease_id, &failure, lease.trail.as_trace()).await;
                    at("lease.fail.after");
                    outcome
                })
            })
            .await;
        match outcome {
            Ok(LeaseFailOutcome::Lost) | Err(StatementError::Lost) => RunEndResult::Lost,
            Ok(outcome) => RunEndResult::Done(outcome),
            Err(StatementError::Unavailable(_)) => RunEndResult::Abandoned,
            Err(StatementError::Refused(fault)) => {
                // Its lease runs out, and the next copy takes the key over.
                tracing::error!(error = %fault, "cannot record a failed run");
                RunEndResult::Lost
            }
        }
    }

    /// Releases the key for its next run; returns whether this run held it. `None` if PostgreSQL did not answer: the lease runs out.
    #[doc(hidden)]
    pub async fn release(&self) -> Option<bool> {
        self.run().store_unrecorded_outcomes().await;
        let result = self
            .run_until_answered("release a lease", |lease, connection| {
                Box::pin(async move { pg::release_lease(connection, lease.run().lease_id().as_row()).await })
            })
            .await;
        match result {
            Ok(was_held) => Some(was_held),
            Err(error) => {
                tracing::debug!(?error, "lease not released; it will expire");
                None
            }
        }
    }

    /// Retries a statement until it is answered, or the process no longer waits for it. `action` is for logs.
    async fn run_until_answered<T: Send + 'static>(
        &self,
        action: &str,
        build: impl for<'c> Fn(Lease, &'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
        + Clone
        + Send
        + 'static,
    ) -> Result<T, StatementError> {
        let statement_builder = || {
            let (lease, build) = (self.clone(), build.clone());
            build_statement(move |connection| build(lease, connection))
        };
        self.store().own.run_until_answered(self.run().abandon_token(), action, statement_builder).await
    }
}

/// Completes the key once, with the run's own writes in the same transaction.
async fn complete_with_writes(
    lease: Lease,
    write: Arc<FinishWrite>,
    response: Option<Value>,
    is_refused: bool,
    session: &mut Session,
) -> Result<(), RunError> {
    let limit = lease.store().own.limit();
    let mut transaction = pg::wait_for_answer(limit, pg::begin(&mut session.connection)).await?;
    at("lease.complete.before");
    let (lease_id, trace) = (lease.run().lease_id().as_row(), lease.trail.as_trace());
    let completion =
        pg::complete_lease(&mut transaction, lease_id, response.as_ref(), is_refused, true, trace);
    if !pg::wait_for_answer(limit, completion).await? {
        // Completed by an earlier COMMIT with a lost answer. This one waits for a synchronous standby, if there is one.
        pg::wait_for_answer(limit, transaction.commit()).await?;
        return Ok(());
    }
    let transaction_id = pg::wait_for_answer(limit, pg::read_transaction_id(&mut transaction)).await?;
    pg::wait_for_answer(limit, pg::enter_handler(&mut transaction, pg::LockWait::Session)).await?;
    lease.run_within_max_run(write(&mut transaction)).await?;
    check_transaction(&mut transaction, &transaction_id).await?;
    at("lease.commit.before");
    // Includes the writes' deferred work: a timeout there is an error of the writes.
    transaction.commit().await.map_err(|error| match pg::is_cancelled(&error) {
        true => RunError::Handler(HandlerError::Database(error)),
        false => RunError::Own(error),
    })?;
    at("lease.commit.after");
    Ok(())
}
