//! How a run under a lease ends: completed, failed, or given back.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::failed::{RunError, still};
use super::finish::Write;
use super::lines::Finishing;
use super::sessions::{After, Statement};
use super::{Finish, Lease, Said};
use crate::backoff::Backoff;
use crate::encryption::Place;
use crate::failpoint::step as at;
use crate::fault::{Fault, FaultClass};
use crate::fingerprint::Fingerprint;
use crate::handler::HandlerError;
use crate::pg::{self, LeaseFailed, LeaseFailure, PgFault, Session};
use crate::reason::Reason;

/// How a run failed that its message answers for.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: String,
    /// Given up at once, for this.
    pub(crate) reason: Option<Reason>,
    pub(crate) error_code: Option<String>,
    pub(crate) max_attempts: u32,
    /// Of the copy that comes back.
    pub(crate) delay: Duration,
}

/// What became of the end of a run.
#[derive(Debug)]
pub(crate) enum Ended<T> {
    Done(T),
    /// Another run has the key.
    Lost,
    /// The process ends first.
    Abandoned,
}

impl Lease {
    /// Completes the key, with the run's own writes: tried until it is done, or lost. What the writes fail with is the run's failure: what was
    /// called outside is known by its steps, and the next run only writes again.
    /// `fingerprint`: of the payload.
    pub(crate) async fn complete(
        &self,
        finish: &Finish,
        refused: bool,
        fingerprint: Option<Fingerprint>,
    ) -> Result<Ended<()>, Fault> {
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
                    self.0.lines.writes.within(After::Close, self.writing_time(), statement).await
                }
                None => {
                    let (key, response) = (self.key(), stored.clone());
                    let trail = self.0.trail.clone();
                    let end = Finishing { key, fingerprint, response, refused, trail };
                    at("lease.complete.before");
                    // Written and committed with those of others: nothing lies between the two steps.
                    at("lease.commit.before");
                    let done = self.0.lines.finishing.say(end).await;
                    if done.is_ok() {
                        at("lease.commit.after");
                    }
                    done.map_err(RunError::Ours)
                }
            };
            if done.is_err() && finish.write.is_some() {
                // Nobody could renew it while the transaction held its row.
                let _told_by_the_next_statement = self.renew().await;
            }
            let fault = match done {
                Ok(()) => return Ok(Ended::Done(())),
                Err(RunError::Ours(error)) if pg::is_lease_lost(&error) => return Ok(Ended::Lost),
                // A panic of the handler's write, which no further try would mend.
                Err(RunError::Ours(sqlx::Error::WorkerCrashed)) => {
                    return Err(Fault::new(FaultClass::Transient, None, "the write of the finish panicked"));
                }
                Err(RunError::Ours(error)) => match pg::classify(error) {
                    PgFault::Outage(outage) => Fault::new(FaultClass::Environment, None, outage.to_string()),
                    // What was called outside has happened, and is to be known: it passes, or the lease is lost.
                    PgFault::Fault(fault) if pg::passes(&fault) => fault,
                    PgFault::Fault(fault) => return Err(fault),
                },
                Err(RunError::Handler(error)) => match error.into_fault() {
                    PgFault::Outage(outage) => Fault::new(FaultClass::Environment, None, outage.to_string()),
                    PgFault::Fault(fault) => return Err(fault),
                },
            };
            self.0.lines.own.stall(&fault);
            tracing::warn!(token = self.token(), error = %fault, "a finished run can't be recorded yet; tried again");
            tokio::select! {
                biased;
                () = self.0.abandon.cancelled() => return Ok(Ended::Abandoned),
                () = tokio::time::sleep(backoff.next()) => {}
            }
        }
    }

    /// Why an answer was refused is in the trail as it is, and here as well. One that is too large is the run's failure, whether or not it is
    /// encrypted.
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
        Ok(match self.0.sealer.seal(&Place::response(&self.0.identity), response) {
            Ok(stored) => Some(stored),
            // Never as it is. What was called outside has happened, so the key is completed all the same.
            Err(error) => {
                tracing::error!(token = self.token(), %error, "a response is not stored: it can't be encrypted");
                None
            }
        })
    }

    /// How long a handler's own transaction may take, with our statements round it.
    pub(super) fn writing_time(&self) -> Duration {
        self.0.time.max_run + self.0.lines.own.limit().saturating_mul(4)
    }

    /// Ends a run that failed.
    pub(crate) async fn fail(&self, failure: Failure) -> Ended<LeaseFailed> {
        self.pay_owed().await;
        let failed = self
            .said(&self.0.lines.own, &self.0.abandon, "a failed run is recorded", move |me, connection| {
                let failure = failure.clone();
                Box::pin(async move {
                    let failure = LeaseFailure {
                        error: &failure.error,
                        reason: failure.reason,
                        error_code: failure.error_code.as_deref(),
                        max_attempts: failure.max_attempts,
                        delay: failure.delay,
                        // Who answers for it was decided before.
                        is_charged: true,
                    };
                    at("lease.fail.before");
                    let failed = pg::fail_lease(connection, me.held(), &failure, me.0.trail.of()).await;
                    at("lease.fail.after");
                    failed
                })
            })
            .await;
        match failed {
            Ok(LeaseFailed::Lost) | Err(Said::Lost) => Ended::Lost,
            Ok(failed) => Ended::Done(failed),
            Err(Said::Abandoned) => Ended::Abandoned,
            Err(Said::Fault(fault)) => {
                // Its lease runs out, and the next copy takes the key over.
                tracing::error!(error = %fault, "a failed run can't be recorded");
                Ended::Lost
            }
        }
    }

    /// Gives the key back, for whoever comes next. False: another run has it; `None`: nobody could be asked, and the lease runs out.
    pub(crate) async fn release(&self) -> Option<bool> {
        self.pay_owed().await;
        let released = self
            .said(&self.0.lines.own, &self.0.abandon, "a lease is given back", |me, connection| {
                Box::pin(async move { pg::release_lease(connection, me.held()).await })
            })
            .await;
        match released {
            Ok(was_held) => Some(was_held),
            Err(said) => {
                tracing::debug!(?said, "a lease was not given back: it runs out");
                None
            }
        }
    }
}

/// One try, with writes of the run's own in its transaction.
async fn complete_with(
    me: Lease,
    write: Arc<Write>,
    response: Option<Value>,
    refused: bool,
    session: &mut Session,
) -> Result<(), RunError> {
    let limit = me.0.lines.own.limit();
    let mut transaction = pg::within(limit, pg::begin(&mut session.connection)).await?;
    at("lease.complete.before");
    let completed =
        pg::complete_lease(&mut transaction, me.held(), response.as_ref(), refused, true, me.0.trail.of());
    if !pg::within(limit, completed).await? {
        // Done by a COMMIT of before, whose answer was lost. This one waits for a synchronous standby, if there is one.
        pg::within(limit, transaction.commit()).await?;
        return Ok(());
    }
    let own = pg::within(limit, pg::transaction_id(&mut transaction)).await?;
    pg::within(limit, pg::enter_handler(&mut transaction, pg::LockWait::Session)).await?;
    me.in_time(write(&mut transaction)).await?;
    still(&mut transaction, &own).await?;
    at("lease.commit.before");
    // With what the writes have deferred: what takes too long there is theirs.
    transaction.commit().await.map_err(|error| match pg::is_cancelled(&error) {
        true => RunError::Handler(HandlerError::Database(error)),
        false => RunError::Ours(error),
    })?;
    at("lease.commit.after");
    Ok(())
}
