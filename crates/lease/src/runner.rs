//! Runs work under leases of a store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::again::retry_until_answered;
use super::claim::{Claim, ClaimOutcome, Grant};
use super::dual_instant::DualInstant;
use super::error::StoreError;
use super::holding::HeldKeyGuard;
use super::lease_id::{FailOutcome, Failure, LeaseId};
use super::run::Run;
use super::store::LeaseStore;
use crate::handler_error::HandlerError;
use oncely_core::backoff::Backoff;
use oncely_core::decide::{FailureDecision, decide_after_failure};
use oncely_core::encryption::Sealer;
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::identity::Identity;
use oncely_core::reason::{Reason, Rejection};
use oncely_core::retry::RetryPolicy;
use oncely_postgres::PgFault;

/// Time before `max_run` at which a run is signalled to end, so that its failure can be recorded before another run may take the key over.
/// For a short run it is a quarter of `max_run`.
const END_MARGIN: Duration = Duration::from_secs(3);
/// Maximum number of tries of a claim that is not answered.
const MAX_CLAIMS: u32 = 3;

/// Runs work under leases of a store: claims the key, renews the lease while the work runs, and records its end.
#[derive(Debug)]
pub struct LeaseRunner<S> {
    store: Arc<S>,
    lease: Duration,
    max_run: Duration,
    retention: Duration,
    retry: RetryPolicy,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RunOutcome {
    /// The run succeeded: the response, which copies get from now on.
    Done(Option<Value>),
    /// The key is completed, and nothing ran: its stored response.
    Duplicate(Option<Value>),
    /// Another run holds the key, for at most this time unless it renews. Try again later: it is neither a duplicate nor a failure.
    InFlight(Duration),
    /// An earlier run failed; this time of its delay is left.
    Wait(Duration),
    /// The key was used with another payload; nothing ran.
    Conflict,
    /// The run failed, and may run again.
    Failed {
        /// A description for operators.
        error: String,
        /// Time until the next run may begin.
        delay: Duration,
    },
    /// The key is given up, by this run's failure or earlier.
    GivenUp {
        /// The reason code.
        reason: Reason,
        /// A description for operators.
        detail: String,
    },
    /// Another run has the key: nothing of this run is recorded except its steps.
    Lost,
}

/// A held key, renewed as long as this value exists. If dropped before the end is recorded, the key is released.
pub struct ActiveRun<S: LeaseStore> {
    #[doc(hidden)]
    pub run: Run<S>,
    /// End of the run's time.
    deadline: tokio::time::Instant,
    guard: HeldKeyGuard<S>,
    heartbeat: AbortOnDropHandle<()>,
}

/// The end of a run.
pub enum RunEnd {
    /// It succeeded, with this response.
    Done(Option<Value>),
    /// It counts as failed.
    Failed(HandlerError),
    /// Nothing is counted, and the next run may begin at once; results stored by its steps stay.
    GivenBack,
}

/// Converts the result of a claim that was not granted.
fn to_run_outcome(outcome: ClaimOutcome) -> RunOutcome {
    match outcome {
        ClaimOutcome::InFlight(remaining) => RunOutcome::InFlight(remaining),
        ClaimOutcome::Wait(remaining) => RunOutcome::Wait(remaining),
        ClaimOutcome::Done(response) => RunOutcome::Duplicate(response),
        ClaimOutcome::Conflict => RunOutcome::Conflict,
        ClaimOutcome::GivenUp { reason, detail } => RunOutcome::GivenUp { reason, detail },
        // Not reached: a granted claim runs.
        ClaimOutcome::Granted(_) => RunOutcome::Lost,
    }
}

impl<S: LeaseStore> LeaseRunner<S> {
    /// Creates a runner with leases of 30 s, runs of at most 10 minutes, a retention of 7 days, and six runs within about an hour and a
    /// quarter.
    pub fn new(store: S) -> Self {
        Self {
            store: Arc::new(store),
            lease: Duration::from_secs(30),
            max_run: Duration::from_secs(600),
            retention: Duration::from_secs(7 * 86_400),
            retry: RetryPolicy::default(),
        }
    }

    /// Sets the duration of a lease, from its claim or renewal on: a second to a day. After a process crashes, its key waits for this time.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// Sets the maximum duration of a run: from the lease to 30 days.
    #[must_use]
    pub fn max_run(self, max_run: Duration) -> Self {
        Self { max_run, ..self }
    }

    /// Sets the time that a key is kept after its last change: from `max_run` to 3,650 days. Choose it longer than a copy may take to
    /// arrive.
    #[must_use]
    pub fn retention(self, retention: Duration) -> Self {
        Self { retention, ..self }
    }

    /// Sets the delays after the first, second, … failed run, of which the last one repeats; the number of runs that may fail; and the
    /// number of runs that may crash (their process died) before the key is given up. Without delays nothing runs twice.
    #[must_use]
    pub fn retry(self, delays: Vec<Duration>, max_attempts: u32, max_crashes: u32) -> Self {
        Self { retry: RetryPolicy { delays, max_attempts, max_crashes }, ..self }
    }

    /// Returns the store of the leases.
    #[must_use]
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }

    /// Runs `work` unless the key is completed or held by another run. `fingerprint` is that of the payload
    /// ([`fingerprint`](super::fingerprint)). The value that the work returns is the response; [`HandlerError::Refused`] gives one, too:
    /// `{"refused": reason}`.
    ///
    /// If the process is killed, its lease runs out, and the next run finds the results that its steps stored. While the store does not
    /// answer, no step begins, and storing the outcome of a call is retried until it is stored or the lease is lost. The heartbeat is a task
    /// of its own and ends with the run.
    ///
    /// Cancellation: if the future is dropped, the work is dropped, and a task releases the key, so that the next run need not wait and
    /// nothing is counted; if the work was already done, its end is recorded all the same. A claim granted by a lost answer is released in
    /// the same way, tried for the duration of a lease. Work that panics counts as a crash.
    ///
    /// A run that takes too long is signalled ([`Run::wait_until_lost`]) up to three seconds before `max_run` is over; two seconds later it
    /// is dropped, and has failed. A run that lost its key to another one is signalled, too; a step that is not repeated
    /// ([`Repeat::Never`](super::Repeat), `Ask`) gets the time of one more lease to end.
    ///
    /// # Errors
    /// If the key could not be claimed: nothing ran. Once the work is done, only if the store is damaged or refuses its arguments.
    pub async fn run<F>(
        &self,
        identity: &Identity,
        fingerprint: [u8; 32],
        work: F,
    ) -> Result<RunOutcome, StoreError>
    where
        F: AsyncFnOnce(Run<S>) -> Result<Option<Value>, HandlerError>,
    {
        let active_run = match self.begin(identity, fingerprint).await? {
            Ok(active_run) => active_run,
            Err(outcome) => return Ok(to_run_outcome(outcome)),
        };
        let run = &active_run.run;
        let overdue = async {
            run.wait_until_overdue().await;
            let one_lease = tokio::time::Instant::now() + self.lease;
            let _ = tokio::time::timeout_at(active_run.deadline.min(one_lease), run.wait_until_not_calling())
                .await;
        };
        let result = tokio::select! {
            biased;
            result = work(run.clone()) => Some(result),
            () = overdue => None,
        };
        let end = match result {
            // Expiry does not invalidate a finished run: only a takeover does, which the store detects.
            Some(Ok(response)) => RunEnd::Done(response),
            Some(Err(error)) if !run.is_lost() => RunEnd::Failed(error),
            Some(Err(_)) | None if run.is_too_long() => {
                let limit = self.max_run;
                RunEnd::Failed(HandlerError::transient(format!(
                    "the run took longer than {limit:?} (max_run)"
                )))
            }
            // If the lease was only presumed lost, the next run need not wait.
            Some(Err(_)) | None => RunEnd::GivenBack,
        };
        self.end(active_run, end).await
    }

    /// Claims a key, and renews its lease as long as the returned value exists; otherwise returns the claim's result, never
    /// [`ClaimOutcome::Granted`]. The caller ends the run by [`LeaseRunner::end`].
    #[doc(hidden)]
    pub async fn begin(
        &self,
        identity: &Identity,
        fingerprint: [u8; 32],
    ) -> Result<Result<ActiveRun<S>, ClaimOutcome>, StoreError> {
        let claiming = tokio::spawn(self.copy().claim(identity.clone(), fingerprint));
        let (guard, grant, confirmed_at) = match claiming.await.map_err(StoreError::unavailable)?? {
            Ok(granted) => granted,
            Err(outcome) => return Ok(Err(outcome)),
        };
        let (store, lease_id) = (Arc::clone(&self.store), guard.lease_id().clone());
        let (sealer, abandon_token) = (Sealer::default(), CancellationToken::new());
        let run = Run::new(store, lease_id, grant, self.lease, confirmed_at, sealer, abandon_token);
        let deadline =
            tokio::time::Instant::now() + self.max_run.saturating_sub(END_MARGIN.min(self.max_run / 4));
        let heartbeat = AbortOnDropHandle::new(tokio::spawn(run.clone().run_heartbeat(deadline)));
        Ok(Ok(ActiveRun { run, deadline, guard, heartbeat }))
    }

    /// Records the end of a run in a task, even if the caller is dropped. Retries until the end is stored or the lease is lost.
    #[doc(hidden)]
    pub async fn end(&self, active_run: ActiveRun<S>, end: RunEnd) -> Result<RunOutcome, StoreError> {
        let ActiveRun { run, guard, heartbeat, .. } = active_run;
        let result = match end {
            RunEnd::Done(response) => Ok(response),
            RunEnd::Failed(error) => Err(error),
            RunEnd::GivenBack => {
                let release = tokio::spawn(async move {
                    let _heartbeat = heartbeat;
                    run.store_unrecorded_outcomes().await;
                    guard.release().await;
                });
                return release.await.map(|()| RunOutcome::Lost).map_err(StoreError::unavailable);
            }
        };
        guard.mark_ended();
        let runner = self.copy();
        let recording = tokio::spawn(async move {
            let _heartbeat = heartbeat;
            match result {
                Ok(response) => runner.complete(&run, response).await,
                Err(error) => {
                    run.store_unrecorded_outcomes().await;
                    runner.fail(&run, error).await
                }
            }
        });
        recording.await.map_err(StoreError::unavailable)?
    }

    /// Returns a runner with the same store and settings, for a task of its own.
    fn copy(&self) -> Self {
        Self { store: Arc::clone(&self.store), retry: self.retry.clone(), ..*self }
    }

    /// Claims the key. A claim without an answer is retried with the same owner, [`MAX_CLAIMS`] times in all; the lease counts from when
    /// the last request was sent.
    async fn claim(
        self,
        identity: Identity,
        fingerprint: [u8; 32],
    ) -> Result<Result<(HeldKeyGuard<S>, Grant, DualInstant), ClaimOutcome>, StoreError> {
        let owner = Uuid::new_v4().to_string();
        let mut backoff = Backoff::default();
        let mut tries = 0;
        loop {
            let requested_at = DualInstant::now();
            tries += 1;
            let outcome = match self.send_claim(&identity, fingerprint, &owner).await {
                Ok(outcome) => outcome,
                Err(StoreError::Unavailable(_)) if tries < MAX_CLAIMS => {
                    tokio::time::sleep(backoff.next_pause()).await;
                    continue;
                }
                Err(error) => {
                    if matches!(error, StoreError::Unavailable(_)) {
                        tokio::spawn(self.release_unanswered_claim(identity, fingerprint, owner));
                    }
                    return Err(error);
                }
            };
            return Ok(match outcome {
                ClaimOutcome::Granted(grant) => Ok((self.guard_key(&identity, grant), grant, requested_at)),
                outcome => Err(outcome),
            });
        }
    }

    /// Sends one claim of a key to the store, with the settings of this runner.
    async fn send_claim(
        &self,
        identity: &Identity,
        fingerprint: [u8; 32],
        owner: &str,
    ) -> Result<ClaimOutcome, StoreError> {
        let claim = Claim {
            identity,
            fingerprint,
            owner,
            lease: self.lease,
            max_run: self.max_run,
            retention: self.retention,
            max_crashes: self.retry.max_crashes,
        };
        self.store.claim(&claim).await
    }

    /// Creates the guard of a granted key: dropped before the end of the run, it releases the key.
    fn guard_key(&self, identity: &Identity, grant: Grant) -> HeldKeyGuard<S> {
        let lease_id = LeaseId { identity: identity.clone(), token: grant.token };
        HeldKeyGuard::new(Arc::clone(&self.store), lease_id, self.lease)
    }

    /// Releases the lease of a claim that was not answered: it may have been granted, and no run uses it. Retries the claim until it is
    /// answered or the lease has run out, and releases a grant.
    async fn release_unanswered_claim(self, identity: Identity, fingerprint: [u8; 32], owner: String) {
        let (since, mut backoff) = (Instant::now(), Backoff::default());
        while since.elapsed() < self.lease {
            tokio::time::sleep(backoff.next_pause()).await;
            match self.send_claim(&identity, fingerprint, &owner).await {
                Ok(ClaimOutcome::Granted(grant)) => return self.guard_key(&identity, grant).release().await,
                Err(StoreError::Unavailable(_)) => {}
                _ => return,
            }
        }
    }

    /// Completes the key. Retries until the response is stored or the lease is lost; never records a failure or releases the key instead,
    /// unless the store refuses the response.
    async fn complete(&self, run: &Run<S>, response: Option<Value>) -> Result<RunOutcome, StoreError> {
        let request = || self.store.complete(run.lease_id(), response.as_ref());
        match retry_until_answered(run.abandon_token(), "record a finished run", request).await {
            Ok(()) => Ok(RunOutcome::Done(response)),
            Err(StoreError::Lost) => {
                // The key is another run's; the outcome of this run's call belongs to its step.
                run.store_unrecorded_outcomes().await;
                Ok(RunOutcome::Lost)
            }
            // A repetition can't help; the steps are stored.
            Err(StoreError::Refused(why)) => {
                let (reason, max_attempts) = (Some(Reason::Poison), self.retry.max_attempts);
                self.record_failure(run, &why, reason, Duration::ZERO, max_attempts).await
            }
            Err(error) => Err(error),
        }
    }

    /// Ends a failed run by the retry policy: records a retry, gives the key up, or completes it with a refusal.
    async fn fail(&self, run: &Run<S>, error: HandlerError) -> Result<RunOutcome, StoreError> {
        let unknown_reason =
            matches!(error, HandlerError::OutcomeUnknown(_)).then_some(Reason::OutcomeUnknown);
        let fault = match error.into_fault() {
            PgFault::Fault(fault) => fault,
            PgFault::Outage(outage) => Fault::new(FaultClass::Environment, None, outage.to_string()),
        };
        let max_attempts = self.retry.max_attempts;
        let (reason, delay, max_attempts) = match decide_after_failure(&fault, run.attempt(), &self.retry) {
            FailureDecision::Refuse(why) => {
                return self.complete(run, Some(json!({ "refused": why }))).await;
            }
            FailureDecision::Retry(delay) => (None, delay, max_attempts),
            // The store counts the attempts itself: this run was the last.
            FailureDecision::GiveUp(Rejection { reason: Reason::AttemptsExhausted, .. }) => {
                (None, Duration::ZERO, run.attempt())
            }
            FailureDecision::GiveUp(rejection) => (Some(rejection.reason), Duration::ZERO, max_attempts),
        };
        self.record_failure(run, &fault.to_string(), unknown_reason.or(reason), delay, max_attempts).await
    }

    /// Records a failed run. Retries until the failure is stored or the lease is lost.
    async fn record_failure(
        &self,
        run: &Run<S>,
        error: &str,
        reason: Option<Reason>,
        delay: Duration,
        max_attempts: u32,
    ) -> Result<RunOutcome, StoreError> {
        let failure = Failure { error, reason, max_attempts, delay };
        let request = || self.store.fail(run.lease_id(), &failure);
        match retry_until_answered(run.abandon_token(), "record a failed run", request).await {
            Ok(FailOutcome::Retry { .. }) => Ok(RunOutcome::Failed { error: error.to_owned(), delay }),
            Ok(FailOutcome::GivenUp { reason, .. }) => {
                Ok(RunOutcome::GivenUp { reason, detail: error.to_owned() })
            }
            Ok(FailOutcome::Completed | FailOutcome::Lost) | Err(StoreError::Lost) => Ok(RunOutcome::Lost),
            Err(error) => Err(error),
        }
    }
}
