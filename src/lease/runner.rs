//! Runs work under leases of a store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::claim::{Claim, Claimed, Grant};
use super::error::StoreError;
use super::held::{Failed, Failure, Held};
use super::holding::Holding;
use super::run::Run;
use super::store::LeaseStore;
use crate::backoff::Backoff;
use crate::decide::{FailureDecision, after_failure};
use crate::fault::{Fault, FaultClass};
use crate::handler::HandlerError;
use crate::handler::lease::Belief;
use crate::identity::Identity;
use crate::pg::PgFault;
use crate::reason::{Reason, Rejection};
use crate::retry::RetryPolicy;

/// How long a run that is to end may take for it.
const DROPPED_AFTER: Duration = Duration::from_secs(2);
/// How long before `max_run` a run is told: in time for its failure to be recorded before somebody else may take the key over. Of a short run
/// it is a quarter.
const EARLY: Duration = Duration::from_secs(3);
/// How often a claim is said that is not answered.
const CLAIMS: u32 = 3;

/// Runs work under leases of a store: claims the key, renews the lease while the work runs, and records its end.
#[derive(Debug)]
pub struct LeaseRunner<S> {
    store: Arc<S>,
    lease: Duration,
    max_run: Duration,
    retention: Duration,
    retry: RetryPolicy,
}

/// What became of a run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Ran {
    /// It took effect now: the response that copies get from now on.
    Done(Option<Value>),
    /// It took effect before, and nothing ran: the response of then.
    Duplicate(Option<Value>),
    /// Another run holds the key, for so long at most unless it renews. Come back: neither a duplicate nor a failure.
    InFlight(Duration),
    /// A run failed before: not before so long.
    Wait(Duration),
    /// The key came before with another payload; nothing ran.
    Conflict,
    /// The run failed, and may run again.
    Failed {
        /// For people.
        error: String,
        /// Not before so long.
        delay: Duration,
    },
    /// It runs no more: by this run's failure, or given up before.
    GivenUp {
        /// Why.
        reason: Reason,
        /// For people.
        detail: String,
    },
    /// Another run has the key: nothing of this one is recorded but its steps.
    Lost,
}

/// A key that is held, and renewed as long as this lives. Dropped before its end is said, it is given back.
pub(crate) struct Running<S: LeaseStore> {
    pub(crate) run: Run<S>,
    holding: Holding<S>,
    heartbeat: AbortOnDropHandle<()>,
}

/// How a run ended.
pub(crate) enum Ended {
    /// It took effect: the response.
    Done(Option<Value>),
    /// It counts as failed.
    Failed(HandlerError),
    /// Nothing is counted, and the next one may run at once; what its steps have stored stays.
    GivenBack,
}

/// A key that this claim did not get.
fn not_run(claimed: Claimed) -> Ran {
    match claimed {
        Claimed::InFlight(left) => Ran::InFlight(left),
        Claimed::Wait(left) => Ran::Wait(left),
        Claimed::Done(response) => Ran::Duplicate(response),
        Claimed::Conflict => Ran::Conflict,
        Claimed::GivenUp { reason, detail } => Ran::GivenUp { reason, detail },
        // Whoever was granted it runs.
        Claimed::Granted(_) => Ran::Lost,
    }
}

impl<S: LeaseStore> LeaseRunner<S> {
    /// With leases of 30 s, runs of 10 minutes at most, a retention of 7 days, and six runs within about an hour and a quarter.
    pub fn new(store: S) -> Self {
        Self {
            store: Arc::new(store),
            lease: Duration::from_secs(30),
            max_run: Duration::from_secs(600),
            retention: Duration::from_secs(7 * 86_400),
            retry: RetryPolicy::default(),
        }
    }

    /// How long a lease is, from its claim or renewal on: a second to a day. After the death of a process its key waits for so long.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// How long a run may take: from the lease to 30 days.
    #[must_use]
    pub fn max_run(self, max_run: Duration) -> Self {
        Self { max_run, ..self }
    }

    /// How long a key is remembered after the last word about it: from `max_run` to 3,650 days. Longer than any copy may take to come.
    #[must_use]
    pub fn retention(self, retention: Duration) -> Self {
        Self { retention, ..self }
    }

    /// Delays after the first, second, … failed run, of which the last one repeats; how many runs may fail; and how many may end without a word
    /// (their process died) before the key is given up. Without delays nothing runs twice.
    #[must_use]
    pub fn retry(self, delays: Vec<Duration>, max_attempts: u32, max_crashes: u32) -> Self {
        Self { retry: RetryPolicy { delays, max_attempts, max_crashes }, ..self }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }

    /// Runs `work` if nobody has, and nobody does. `fingerprint`: of the payload ([`fingerprint`](super::fingerprint)). What the work returns is the
    /// response; [`HandlerError::Refused`] is one, too: `{"refused": reason}`.
    ///
    /// Where its process is killed, the run ends without a word: its lease runs out, and the next one finds what its steps have stored. What is
    /// done when the store can't be asked: a step does not begin, and what has happened is said until it is stored or the lease is lost. The
    /// heartbeat is a task of its own and ends with the run.
    ///
    /// Cancellation: dropped half-way, the work is dropped, and the key is given back in a task, so that the next run need not wait and nothing is
    /// counted; where the work is done already, its end is recorded all the same. So is given back what a claim was granted whose answer was
    /// lost, for as long as a lease. Work that panics counts as a run that ended without a word.
    ///
    /// A run that takes too long is told so ([`Run::lost`]) up to three seconds before `max_run` is over; two seconds later it is dropped, and has
    /// failed.
    ///
    /// # Errors
    /// [`StoreError`] where the key could not be claimed: nothing ran. Once the work is done nothing but a store that is damaged, or refuses its
    /// arguments, is an error.
    pub async fn run<F>(&self, identity: &Identity, fingerprint: [u8; 32], work: F) -> Result<Ran, StoreError>
    where
        F: AsyncFnOnce(Run<S>) -> Result<Option<Value>, HandlerError>,
    {
        let running = match self.begin(identity, fingerprint).await? {
            Ok(running) => running,
            Err(claimed) => return Ok(not_run(claimed)),
        };
        let run = &running.run;
        let late = async {
            run.lost().await;
            tokio::time::sleep(DROPPED_AFTER).await;
        };
        let worked = tokio::select! {
            biased;
            worked = work(run.clone()) => Some(worked),
            () = late => None,
        };
        let ended = match worked {
            // Expiry takes nothing from a run that is done: only a takeover does, and the store knows.
            Some(Ok(response)) => Ended::Done(response),
            Some(Err(error)) if !run.is_lost() => Ended::Failed(error),
            Some(Err(_)) | None if run.is_too_long() => {
                let limit = self.max_run;
                Ended::Failed(HandlerError::transient(format!(
                    "the run took longer than {limit:?} (max_run)"
                )))
            }
            // Where it was only believed to be lost, the next one need not wait.
            Some(Err(_)) | None => Ended::GivenBack,
        };
        self.end(running, ended).await
    }

    /// Claims a key, and renews its lease as long as what is returned lives; else why it is not to run, never
    /// [`Claimed::Granted`]. Whoever has it calls [`LeaseRunner::end`].
    pub(crate) async fn begin(
        &self,
        identity: &Identity,
        fingerprint: [u8; 32],
    ) -> Result<Result<Running<S>, Claimed>, StoreError> {
        let claiming = tokio::spawn(self.copy().claim(identity.clone(), fingerprint));
        let (holding, grant, belief) = match claiming.await.map_err(StoreError::unavailable)?? {
            Ok(granted) => granted,
            Err(claimed) => return Ok(Err(claimed)),
        };
        let run = Run::new(Arc::clone(&self.store), holding.held().clone(), grant, self.lease, belief);
        let in_time = self.max_run.saturating_sub(EARLY.min(self.max_run / 4));
        let heartbeat = AbortOnDropHandle::new(tokio::spawn(run.clone().heartbeat(in_time)));
        Ok(Ok(Running { run, holding, heartbeat }))
    }

    /// Records how a run ended, in a task: said until it is stored or lost, whoever waits for it.
    pub(crate) async fn end(&self, running: Running<S>, ended: Ended) -> Result<Ran, StoreError> {
        let Running { run, holding, heartbeat } = running;
        let end = match ended {
            Ended::Done(response) => Ok(response),
            Ended::Failed(error) => Err(error),
            Ended::GivenBack => {
                let given_back = tokio::spawn(async move {
                    let _heartbeat = heartbeat;
                    run.pay_owed().await;
                    holding.give_back().await;
                });
                return given_back.await.map(|()| Ran::Lost).map_err(StoreError::unavailable);
            }
        };
        holding.over();
        let me = self.copy();
        let recording = tokio::spawn(async move {
            let _heartbeat = heartbeat;
            match end {
                Ok(response) => me.complete(&run, response).await,
                Err(error) => {
                    run.pay_owed().await;
                    me.failed(&run, error).await
                }
            }
        });
        recording.await.map_err(StoreError::unavailable)?
    }

    /// For a task of its own.
    fn copy(&self) -> Self {
        Self { store: Arc::clone(&self.store), retry: self.retry.clone(), ..*self }
    }

    /// Said again by the same owner where its answer is lost. The lease counts from when the last question left.
    async fn claim(
        self,
        identity: Identity,
        fingerprint: [u8; 32],
    ) -> Result<Result<(Holding<S>, Grant, Belief), Claimed>, StoreError> {
        let owner = Uuid::new_v4().to_string();
        let mut backoff = Backoff::default();
        let mut said = 0;
        loop {
            let belief = Belief::now();
            said += 1;
            let claimed = match self.say_claim(&identity, fingerprint, &owner).await {
                Ok(claimed) => claimed,
                Err(StoreError::Unavailable(_)) if said < CLAIMS => {
                    tokio::time::sleep(backoff.next()).await;
                    continue;
                }
                Err(error) => {
                    if matches!(error, StoreError::Unavailable(_)) {
                        tokio::spawn(self.take_back(identity, fingerprint, owner));
                    }
                    return Err(error);
                }
            };
            return Ok(match claimed {
                Claimed::Granted(grant) => Ok((self.holding(&identity, grant), grant, belief)),
                claimed => Err(claimed),
            });
        }
    }

    async fn say_claim(
        &self,
        identity: &Identity,
        fingerprint: [u8; 32],
        owner: &str,
    ) -> Result<Claimed, StoreError> {
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

    fn holding(&self, identity: &Identity, grant: Grant) -> Holding<S> {
        let held = Held { identity: identity.clone(), token: grant.token };
        Holding::new(Arc::clone(&self.store), held, self.lease)
    }

    /// A claim without an answer may have been granted, and nobody runs: it is said again, and what it gets is given back. Behind the lease it
    /// is too late.
    async fn take_back(self, identity: Identity, fingerprint: [u8; 32], owner: String) {
        let (since, mut backoff) = (Instant::now(), Backoff::default());
        while since.elapsed() < self.lease {
            tokio::time::sleep(backoff.next()).await;
            match self.say_claim(&identity, fingerprint, &owner).await {
                Ok(Claimed::Granted(grant)) => return self.holding(&identity, grant).give_back().await,
                Err(StoreError::Unavailable(_)) => {}
                _ => return,
            }
        }
    }

    /// It took effect: said until it is stored or lost, never "failed" and never given back.
    async fn complete(&self, run: &Run<S>, response: Option<Value>) -> Result<Ran, StoreError> {
        let mut backoff = Backoff::default();
        loop {
            match self.store.complete(run.held(), response.as_ref()).await {
                Ok(()) => return Ok(Ran::Done(response)),
                Err(StoreError::Lost) => return Ok(Ran::Lost),
                Err(StoreError::Unavailable(error)) => {
                    tracing::warn!(token = run.token(), error = %format_args!("{error:#}"),
                        "a finished run can't be recorded yet; tried again");
                    tokio::time::sleep(backoff.next()).await;
                }
                // No try would mend it; the steps are known.
                Err(StoreError::Refused(why)) => {
                    let (reason, most) = (Some(Reason::Poison), self.retry.max_attempts);
                    return self.record(run, &why, reason, Duration::ZERO, most).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn failed(&self, run: &Run<S>, error: HandlerError) -> Result<Ran, StoreError> {
        let unknown = matches!(error, HandlerError::OutcomeUnknown(_)).then_some(Reason::OutcomeUnknown);
        let fault = match error.into_fault() {
            PgFault::Fault(fault) => fault,
            PgFault::Outage(outage) => Fault::new(FaultClass::Environment, None, outage.to_string()),
        };
        let max_attempts = self.retry.max_attempts;
        let (reason, delay, max_attempts) = match after_failure(&fault, run.attempt(), &self.retry) {
            FailureDecision::Refuse(why) => {
                return self.complete(run, Some(json!({ "refused": why }))).await;
            }
            FailureDecision::Retry(delay) => (None, delay, max_attempts),
            // The store counts, and says so itself: this run was the last.
            FailureDecision::GiveUp(Rejection { reason: Reason::AttemptsExhausted, .. }) => {
                (None, Duration::ZERO, run.attempt())
            }
            FailureDecision::GiveUp(rejection) => (Some(rejection.reason), Duration::ZERO, max_attempts),
        };
        self.record(run, &fault.to_string(), unknown.or(reason), delay, max_attempts).await
    }

    async fn record(
        &self,
        run: &Run<S>,
        error: &str,
        reason: Option<Reason>,
        delay: Duration,
        max_attempts: u32,
    ) -> Result<Ran, StoreError> {
        let failure = Failure { error, reason, max_attempts, delay };
        let mut backoff = Backoff::default();
        loop {
            match self.store.fail(run.held(), &failure).await {
                Ok(Failed::Retry { .. }) => return Ok(Ran::Failed { error: error.to_owned(), delay }),
                Ok(Failed::GivenUp { reason, .. }) => {
                    return Ok(Ran::GivenUp { reason, detail: error.to_owned() });
                }
                Ok(Failed::Completed | Failed::Lost) | Err(StoreError::Lost) => return Ok(Ran::Lost),
                Err(StoreError::Unavailable(error)) => {
                    tracing::warn!(token = run.token(), error = %format_args!("{error:#}"),
                        "a failed run can't be recorded yet; tried again");
                    tokio::time::sleep(backoff.next()).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
