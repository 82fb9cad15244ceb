//! How a run under a lease ends: completed, failed, or given back.

use std::time::Duration;

use super::failed::{RunError, still};
use super::sessions::After;
use super::{Finish, Lease, Said};
use crate::backoff::Backoff;
use crate::failpoint::step as at;
use crate::fault::{Fault, FaultClass};
use crate::pg::{self, LeaseFailed, LeaseFailure, PgFault};
use crate::reason::Reason;

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
    /// Completes the key, with the run's own writes: tried until it is done, or lost.
    pub(crate) async fn complete(&self, finish: &Finish, refused: bool) -> Result<Ended<()>, Fault> {
        let mut backoff = Backoff::default();
        loop {
            let (me, finish) = (self.clone(), finish.clone());
            let after = if finish.write.is_some() { After::Close } else { After::Keep };
            let done = self.0.sessions.once::<(), RunError>(
                after,
                Box::new(move |connection| {
                    Box::pin(async move {
                        let mut transaction = pg::begin(connection).await?;
                        let trace = me.0.trail.of();
                        let response = finish.response.as_ref();
                        at("lease.complete.before");
                        if !pg::complete_lease(&mut transaction, me.held(), response, refused, trace).await? {
                            // Done by a COMMIT of before, whose answer was lost. This one waits for a synchronous standby, if there is one.
                            transaction.commit().await?;
                            return Ok(());
                        }
                        if let Some(write) = &finish.write {
                            let own = pg::transaction_id(&mut transaction).await?;
                            pg::enter_handler(&mut transaction, pg::LockWait::Session).await?;
                            write(&mut transaction).await?;
                            still(&mut transaction, &own).await?;
                        }
                        at("lease.commit.before");
                        transaction.commit().await?;
                        at("lease.commit.after");
                        Ok(())
                    })
                }),
            );
            let fault = match done.await {
                Ok(()) => return Ok(Ended::Done(())),
                Err(RunError::Ours(error)) if pg::is_lease_lost(&error) => return Ok(Ended::Lost),
                // A panic of the handler's write, which no further try would mend.
                Err(RunError::Ours(sqlx::Error::WorkerCrashed)) => {
                    return Err(Fault::new(FaultClass::Transient, None, "the write of the finish panicked"));
                }
                Err(RunError::Ours(error)) => match pg::classify(error) {
                    PgFault::Outage(outage) => Fault::new(FaultClass::Environment, None, outage.to_string()),
                    // What was called outside has happened, and is to be known: it passes, or the lease is lost.
                    PgFault::Fault(fault) => match fault.class {
                        FaultClass::Contention | FaultClass::Environment | FaultClass::Session => fault,
                        _ => return Err(fault),
                    },
                },
                Err(RunError::Handler(error)) => match error.into_fault() {
                    PgFault::Outage(outage) => Fault::new(FaultClass::Environment, None, outage.to_string()),
                    PgFault::Fault(fault) if fault.class == FaultClass::Contention => fault,
                    PgFault::Fault(fault) => return Err(fault),
                },
            };
            self.0.sessions.stall(&fault);
            tracing::warn!(token = self.token(), error = %fault, "a finished run can't be recorded yet; tried again");
            tokio::select! {
                biased;
                () = self.0.abandon.cancelled() => return Ok(Ended::Abandoned),
                () = tokio::time::sleep(backoff.next()) => {}
            }
        }
    }

    /// Ends a run that failed.
    pub(crate) async fn fail(
        &self,
        error: String,
        reason: Option<Reason>,
        error_code: Option<String>,
        max_attempts: u32,
        delay: Duration,
    ) -> Ended<LeaseFailed> {
        let failed = self
            .said(&self.0.sessions, &self.0.abandon, "a failed run is recorded", move |me, connection| {
                let (error, error_code) = (error.clone(), error_code.clone());
                Box::pin(async move {
                    let failure = LeaseFailure {
                        error: &error,
                        reason,
                        error_code: error_code.as_deref(),
                        max_attempts,
                        delay,
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

    /// Gives the key back, for whoever comes next.
    pub(crate) async fn release(&self) {
        let released = self
            .said(&self.0.sessions, &self.0.abandon, "a lease is given back", |me, connection| {
                Box::pin(async move { pg::release_lease(connection, me.held()).await })
            })
            .await;
        if let Err(said) = released {
            tracing::debug!(?said, "a lease was not given back: it runs out");
        }
    }
}
