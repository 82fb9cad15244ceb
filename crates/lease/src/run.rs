//! A run under a lease of a store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::again::retry_until_answered;
use super::claim::Grant;
use super::dual_instant::DualInstant;
use super::error::StoreError;
use super::lease_id::{BegunStep, LeaseId, RefusedCall, RenewOutcome, StepState};
use super::step::{Call, Repeat, Step, StepError};
use super::store::StepStore;
use crate::handler_error::HandlerError;
use oncely_core::backoff::Backoff;
use oncely_core::encryption::{CipherError, Place, Sealer};
use oncely_failpoint::step as at;

/// Time for which a run that has to end is not dropped.
const END_GRACE: Duration = Duration::from_secs(2);

/// A key that this run holds in a store. See [`LeaseRunner`](super::LeaseRunner).
pub struct Run<S>(Arc<RunInner<S>>);

struct RunInner<S> {
    store: Arc<S>,
    lease_id: LeaseId,
    grant: Grant,
    lease: Duration,
    /// Time of the request by which the store has last granted or renewed the lease.
    confirmed_at: Mutex<DualInstant>,
    /// For results of steps.
    sealer: Sealer,
    /// Whether an encryption key of this run's results is missing in this process.
    lacks_key: AtomicBool,
    /// Cancelled when another run has the key, or this run has to end.
    end_token: CancellationToken,
    /// Cancelled when the process no longer waits for records to be stored.
    abandon_token: CancellationToken,
    /// The error of the first step with unknown outcome.
    unknown_error: OnceLock<String>,
    /// The outcomes of calls that are not stored yet.
    unrecorded_outcomes: Mutex<Vec<UnrecordedOutcome>>,
    /// Whether the lease is lost because the run's time is over.
    is_too_long: AtomicBool,
    /// Number of calls in progress that the next run would not repeat.
    call_count: watch::Sender<usize>,
}

/// Counts a call as in progress until it is dropped.
struct CallInProgress<'a>(&'a watch::Sender<usize>);

impl<'a> CallInProgress<'a> {
    fn begin(calls: &'a watch::Sender<usize>) -> Self {
        calls.send_modify(|count| *count += 1);
        Self(calls)
    }
}

impl Drop for CallInProgress<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// The certain outcome of a step.
#[derive(Clone, PartialEq)]
enum UnrecordedOutcome {
    Done(&'static str, Value),
    Refused(&'static str, RefusedCall),
}

impl UnrecordedOutcome {
    fn step(&self) -> &'static str {
        match self {
            Self::Done(step, _) | Self::Refused(step, _) => step,
        }
    }

    /// Returns whether no call was made, of a step that may have begun.
    fn is_not_called(&self) -> bool {
        matches!(self, Self::Refused(_, RefusedCall::Begun(_)))
    }
}

/// Records the withdrawal of a step as an unrecorded outcome if its start ends without an answer, also by being dropped: no call follows.
/// While the start lasts, the step must not be withdrawn: a call may follow.
struct StepStartGuard<'a> {
    unrecorded_outcomes: &'a Mutex<Vec<UnrecordedOutcome>>,
    withdrawal: Option<UnrecordedOutcome>,
}

impl Drop for StepStartGuard<'_> {
    fn drop(&mut self) {
        lock(self.unrecorded_outcomes).extend(self.withdrawal.take());
    }
}

fn lock(unrecorded_outcomes: &Mutex<Vec<UnrecordedOutcome>>) -> MutexGuard<'_, Vec<UnrecordedOutcome>> {
    unrecorded_outcomes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S> Clone for Run<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> std::fmt::Debug for Run<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("held", &self.0.lease_id)
            .field("grant", &self.0.grant)
            .finish_non_exhaustive()
    }
}

impl<S: StepStore> Run<S> {
    /// Creates a run. `confirmed_at` is the time of the request that has granted the lease; `sealer` is for results of steps;
    /// `abandon_token` is cancelled when the process no longer waits for records to be stored.
    #[doc(hidden)]
    pub fn new(
        store: Arc<S>,
        lease_id: LeaseId,
        grant: Grant,
        lease: Duration,
        confirmed_at: DualInstant,
        sealer: Sealer,
        abandon_token: CancellationToken,
    ) -> Self {
        Self(Arc::new(RunInner {
            store,
            lease_id,
            grant,
            lease,
            confirmed_at: Mutex::new(confirmed_at),
            sealer,
            lacks_key: AtomicBool::new(false),
            end_token: CancellationToken::new(),
            abandon_token,
            unknown_error: OnceLock::new(),
            unrecorded_outcomes: Mutex::default(),
            is_too_long: AtomicBool::new(false),
            call_count: watch::Sender::new(0),
        }))
    }

    /// Returns the number of the lease, greater than those of all earlier leases of this key. A service that compares it can refuse late
    /// calls of older runs.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.0.grant.token
    }

    /// Returns the number of this run, from 1; crashed runs are not counted.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.grant.attempt
    }

    /// Returns whether an earlier run of the key crashed and none has reported since: its last step may have happened.
    #[must_use]
    pub fn is_takeover(&self) -> bool {
        self.0.grant.is_takeover
    }

    /// Waits until this run has to end: another run has the key, or its time is over. Two seconds later it is dropped. If another run has
    /// the key and this run is making a [step](Run::step) that is not repeated ([`Repeat::Never`], [`Repeat::Ask`]), it goes on
    /// until the step has ended: its outcome would be unknown. A worker decides the message, and an HTTP layer lets other requests with the
    /// key pass meanwhile, within the run's time; a [`LeaseRunner`](super::LeaseRunner) waits for it for the time of one more lease.
    pub async fn wait_until_lost(&self) {
        self.0.end_token.cancelled().await;
    }

    /// Waits until this run has to be dropped: two seconds after it had to end.
    #[doc(hidden)]
    pub async fn wait_until_overdue(&self) {
        self.wait_until_lost().await;
        tokio::time::sleep(END_GRACE).await;
    }

    /// Returns whether the run is making a call that the next run would not repeat. If the run were dropped, the outcome of the call would
    /// be unknown, and the key given up for it.
    #[doc(hidden)]
    pub fn is_calling(&self) -> bool {
        *self.0.call_count.borrow() > 0
    }

    /// Waits until the run makes no call that the next run would not repeat, and the outcomes of such calls are stored.
    #[doc(hidden)]
    pub async fn wait_until_not_calling(&self) {
        // The sender lives as long as the run.
        let _ = self.0.call_count.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Returns whether this run has to end: another run has the key, the run's time is over, or it was stopped.
    #[doc(hidden)]
    pub fn is_lost(&self) -> bool {
        self.0.end_token.is_cancelled()
    }

    /// Returns whether the run's time is over, as far as this process knows. Another run does not necessarily hold the key.
    #[doc(hidden)]
    pub fn is_too_long(&self) -> bool {
        self.0.is_too_long.load(Ordering::Relaxed)
    }

    /// Makes an external call, unless an earlier run has done so: then returns its stored result without a call.
    ///
    /// The step is recorded and committed before the call, and its result is stored after it; both are retried until they succeed. If the
    /// process crashes in between, the rule of the step ([`Repeat`]) decides in the next run.
    ///
    /// # Errors
    /// If the call fails ([`StepError`]); if an earlier call may have happened and must not be repeated
    /// ([`HandlerError::OutcomeUnknown`]); if the lease is lost. The work should return each of them.
    pub async fn step<T, F, Fut>(&self, step: &Step, call: F) -> Result<T, HandlerError>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(Call) -> Fut,
        Fut: Future<Output = Result<T, StepError>> + Send,
    {
        let begun_step = self.begin(step).await?;
        match begun_step.state {
            StepState::Done(result) => self.decode_result(step, result),
            StepState::Unknown => Err(self.remember_unknown(step.to_unknown_error())),
            StepState::Run | StepState::Repeat => self.call(step, self.to_call(&begun_step), call).await,
        }
    }

    /// Makes an external call, like [`Run::step`]; if an earlier call may have happened and its rule forbids a repetition, asks the other
    /// side. `ask` returns the result if the call happened, and `None` if it certainly did not: then the call is made, in the next round.
    ///
    /// # Errors
    /// If [`Run::step`] would fail, or `ask` fails: the step is then unchanged for the next run.
    pub async fn step_or_ask<T, A, AskFut, F, Fut>(
        &self,
        step: &Step,
        ask: A,
        call: F,
    ) -> Result<T, HandlerError>
    where
        T: Serialize + DeserializeOwned,
        A: FnOnce(Call) -> AskFut,
        AskFut: Future<Output = Result<Option<T>, HandlerError>> + Send,
        F: FnOnce(Call) -> Fut,
        Fut: Future<Output = Result<T, StepError>> + Send,
    {
        let begun_step = self.begin(step).await?;
        match begun_step.state {
            StepState::Done(result) => self.decode_result(step, result),
            StepState::Run | StepState::Repeat => self.call(step, self.to_call(&begun_step), call).await,
            StepState::Unknown => match ask(self.to_call(&begun_step)).await? {
                Some(value) => {
                    self.store_result(step, &value).await?;
                    Ok(value)
                }
                None => {
                    self.store_outcome(UnrecordedOutcome::Refused(
                        step.name(),
                        RefusedCall::Round(begun_step.round),
                    ))
                    .await?;
                    let next_begun_step = self.begin(step).await?;
                    match next_begun_step.state {
                        // An earlier run's outcome came late.
                        StepState::Done(result) => self.decode_result(step, result),
                        // The refusal of a repeated call changes nothing in its own run: the next run asks again.
                        StepState::Unknown if next_begun_step.round == begun_step.round => {
                            let step = step.name();
                            Err(HandlerError::transient(format!(
                                "it is unknown whether the step {step} happened"
                            )))
                        }
                        // Another try of this run has begun it since.
                        StepState::Unknown => Err(self.remember_unknown(step.to_unknown_error())),
                        StepState::Run | StepState::Repeat => {
                            self.call(step, self.to_call(&next_begun_step), call).await
                        }
                    }
                }
            },
        }
    }

    /// Builds the call of a step that has begun.
    fn to_call(&self, begun_step: &BegunStep) -> Call {
        Call {
            key: begun_step.call_key,
            round: begun_step.round,
            token: self.0.grant.token,
            is_repeat: begun_step.state == StepState::Repeat,
        }
    }

    /// Marks a step as begun in the store, after it has stored the outcomes of earlier tries that the store does not know yet. Fails if the
    /// result of the call could not be encrypted, the run has to end, or the store refuses.
    async fn begin(&self, step: &Step) -> Result<BegunStep, HandlerError> {
        let inner = &*self.0;
        // No call is made if its result could not be stored.
        inner.sealer.check_available(&self.place(step)).map_err(|error| {
            inner.lacks_key.store(true, Ordering::Relaxed);
            HandlerError::environment(format!(
                "the result of the step {} could not be encrypted: {error}",
                step.name()
            ))
        })?;
        // The outcome that an earlier try of this run knows decides: the result, or that no call was made.
        let outcomes: Vec<_> = lock(&inner.unrecorded_outcomes)
            .iter()
            .filter(|outcome| outcome.step() == step.name())
            .cloned()
            .collect();
        for outcome in outcomes {
            self.store_outcome(outcome).await?;
        }
        // The same id in each try: a reply may be lost.
        let call = Uuid::now_v7();
        let withdrawal = UnrecordedOutcome::Refused(step.name(), RefusedCall::Begun(call));
        let mut guard =
            StepStartGuard { unrecorded_outcomes: &inner.unrecorded_outcomes, withdrawal: Some(withdrawal) };
        let begun_step = self.begin_step_with_retry(step, call).await?;
        guard.withdrawal = None;
        Ok(begun_step)
    }

    /// Marks a step as begun in the store, with `call` as the id of its call. Retries until an answer arrives while the lease that the
    /// request renewed still counts as held. Fails if the run has to end, or the store refuses.
    async fn begin_step_with_retry(&self, step: &Step, call: Uuid) -> Result<BegunStep, HandlerError> {
        let inner = &*self.0;
        loop {
            // The run is dropped soon, which would be in the middle of the call.
            if self.is_lost() {
                return Err(self.give_up());
            }
            let request = || async {
                let requested_at = DualInstant::now();
                let begun_step = inner.store.begin_step(&inner.lease_id, step, call, inner.lease).await;
                begun_step.map(|begun_step| (begun_step, requested_at))
            };
            let begun_step = retry_until_answered(&inner.end_token, "begin a step", request).await;
            let (begun_step, requested_at) = begun_step.map_err(|error| self.handle_store_error(error))?;
            // If this process stalled after sending the request, it asks again.
            if requested_at.holds(inner.lease) {
                self.set_confirmed_at(requested_at);
                return Ok(begun_step);
            }
        }
    }

    /// Makes a call, and stores its outcome if it is certain; retries the storing until the store answers or [`Self::abandon_token`] is
    /// cancelled.
    async fn call<T, F, Fut>(&self, step: &Step, info: Call, call: F) -> Result<T, HandlerError>
    where
        T: Serialize,
        F: FnOnce(Call) -> Fut,
        Fut: Future<Output = Result<T, StepError>> + Send,
    {
        // For the next run its outcome would be unknown.
        let _in_progress = matches!(step.repeat(), Repeat::Never | Repeat::Ask)
            .then(|| CallInProgress::begin(&self.0.call_count));
        at("lease.call.before");
        let result = call(info).await;
        at("lease.call.after");
        match result {
            Ok(value) => {
                self.store_result(step, &value).await?;
                Ok(value)
            }
            Err(StepError::Unknown(error)) => Err(HandlerError::transient(format!("{error:#}"))),
            Err(StepError::Away(error)) => Err(HandlerError::environment(format!("{error:#}"))),
            // The refusal of a repeated call says nothing of the first one: the store keeps the step unchanged. It is reported all the
            // same: an operator's permission to repeat it stays.
            Err(StepError::Refused(error)) => {
                self.store_outcome(UnrecordedOutcome::Refused(step.name(), RefusedCall::Round(info.round)))
                    .await?;
                Err(if info.is_repeat { self.remember_unknown(step.to_repeat_refusal(error)) } else { error })
            }
        }
    }

    /// Stores the result of a call that happened. A result that can never be stored makes the outcome unknown: an operator has to examine
    /// the key.
    async fn store_result<T: Serialize>(&self, step: &Step, value: &T) -> Result<(), HandlerError> {
        let storing = async {
            self.store_outcome(UnrecordedOutcome::Done(step.name(), self.encode_result(step, value)?)).await
        };
        storing.await.map_err(|error| step.to_unstored_error(error))
    }

    /// Stores the outcome of a call. Retries until the store answers or [`Self::abandon_token`] is cancelled. If the run is dropped before
    /// that, the outcome stays unrecorded, and [`Self::store_unrecorded_outcomes`] stores it.
    async fn store_outcome(&self, outcome: UnrecordedOutcome) -> Result<(), HandlerError> {
        let inner = &*self.0;
        {
            let mut unrecorded_outcomes = lock(&inner.unrecorded_outcomes);
            unrecorded_outcomes.retain(|other| *other != outcome);
            unrecorded_outcomes.push(outcome.clone());
        }
        let request = || async {
            match &outcome {
                UnrecordedOutcome::Done(name, result) => {
                    inner.store.checkpoint(&inner.lease_id, name, result, inner.lease).await
                }
                UnrecordedOutcome::Refused(name, refused) => {
                    inner.store.refuse_step(&inner.lease_id, name, *refused, inner.lease).await.map(drop)
                }
            }
        };
        let result = retry_until_answered(&inner.abandon_token, "store the result of a step", request).await;
        lock(&inner.unrecorded_outcomes).retain(|other| *other != outcome);
        result.map_err(|error| self.handle_store_error(error))
    }

    /// Stores the outcomes of calls that are not stored yet, also if another run has the key: it may have been given up only because this
    /// outcome was unknown. A failure is logged.
    #[doc(hidden)]
    pub async fn store_unrecorded_outcomes(&self) {
        let outcomes = std::mem::take(&mut *lock(&self.0.unrecorded_outcomes));
        for outcome in outcomes {
            // The withdrawal of a step that never began may be lost.
            let is_called = !outcome.is_not_called();
            if self.store_outcome(outcome).await.is_err() && is_called {
                tracing::warn!(
                    token = self.token(),
                    "result of a step not stored: another run decides on it"
                );
            }
        }
    }

    /// Returns the [`Place`] of a step's result, to which its encryption is bound.
    fn place(&self, step: &Step) -> Place<'_> {
        Place::step_result(&self.0.lease_id.identity, step.name())
    }

    /// Converts a step's result to its stored form: JSON of a limited size, encrypted if that is configured.
    #[doc(hidden)]
    pub fn encode_result<T: Serialize>(&self, step: &Step, value: &T) -> Result<Value, HandlerError> {
        self.0.sealer.seal(&self.place(step), step.serialize_result(value)?).map_err(|error| {
            HandlerError::environment(format!(
                "the result of the step {} can't be encrypted: {error}",
                step.name()
            ))
        })
    }

    /// Decrypts and parses a stored result. A missing encryption key, which may exist only in other processes, is recorded for
    /// [`Self::lacks_key`].
    #[doc(hidden)]
    pub fn decode_result<T: DeserializeOwned>(&self, step: &Step, sealed: Value) -> Result<T, HandlerError> {
        let result = self.0.sealer.open(&self.place(step), sealed).map_err(|error| {
            if matches!(error, CipherError::NoKey { .. }) {
                self.0.lacks_key.store(true, Ordering::Relaxed);
            }
            HandlerError::environment(format!(
                "the result of the step {} can't be read: {error}",
                step.name()
            ))
        })?;
        step.deserialize_result(result)
    }

    /// Returns whether this process lacked an encryption key that the run needed, which is no fault of its message.
    #[doc(hidden)]
    pub fn lacks_key(&self) -> bool {
        self.0.lacks_key.load(Ordering::Relaxed)
    }

    /// Converts an error of the store to the error that ends the run. If the lease is lost, the run is signalled to end.
    fn handle_store_error(&self, error: StoreError) -> HandlerError {
        match error {
            StoreError::Lost => self.give_up(),
            StoreError::Refused(why) => HandlerError::permanent(why),
            // For a damaged record an operator is needed, and no call is made until then.
            error => HandlerError::transient(error.to_string()),
        }
    }

    /// Remembers the first error of a step with unknown outcome, since the work may return another error instead. Returns the error.
    fn remember_unknown(&self, error: HandlerError) -> HandlerError {
        if let HandlerError::OutcomeUnknown(why) = &error {
            self.0.unknown_error.get_or_init(|| why.clone());
        }
        error
    }

    /// Returns the error of the first step with unknown outcome; `None` if all outcomes are known.
    #[doc(hidden)]
    pub fn unknown_outcome(&self) -> Option<HandlerError> {
        self.0.unknown_error.get().map(|why| HandlerError::OutcomeUnknown(why.clone()))
    }

    /// Signals the run to end.
    #[doc(hidden)]
    pub fn stop(&self) {
        self.0.end_token.cancel();
    }

    /// Signals the run to end because its lease is lost; returns the error with which it ends.
    #[doc(hidden)]
    pub fn give_up(&self) -> HandlerError {
        self.0.end_token.cancel();
        HandlerError::transient("the lease of the key is lost")
    }

    /// Records the time of the request by which the store has last granted or renewed the lease.
    fn set_confirmed_at(&self, time: DualInstant) {
        *self.0.confirmed_at.lock().unwrap_or_else(PoisonError::into_inner) = time;
    }

    /// Returns whether the lease is held according to the store's last answer, without asking the store.
    #[must_use]
    pub fn is_believed(&self) -> bool {
        !self.is_lost()
            && self.0.confirmed_at.lock().unwrap_or_else(PoisonError::into_inner).holds(self.0.lease)
    }

    #[doc(hidden)]
    pub fn lease_id(&self) -> &LeaseId {
        &self.0.lease_id
    }

    #[doc(hidden)]
    pub fn store(&self) -> &Arc<S> {
        &self.0.store
    }

    /// Returns the duration of a lease, from its claim or renewal on.
    #[doc(hidden)]
    pub fn lease(&self) -> Duration {
        self.0.lease
    }

    /// Returns the sealer of step results and of the response.
    #[doc(hidden)]
    pub fn sealer(&self) -> &Sealer {
        &self.0.sealer
    }

    /// Returns the token that is cancelled when the process no longer waits for records to be stored.
    #[doc(hidden)]
    pub fn abandon_token(&self) -> &CancellationToken {
        &self.0.abandon_token
    }

    /// Renews the lease every third of its time, until it is lost or `deadline`, the end of the run's time, comes; then signals the run to
    /// end. To be spawned as a task and aborted with the run.
    #[doc(hidden)]
    pub async fn run_heartbeat(self, deadline: Instant) {
        if tokio::time::timeout_at(deadline, self.renew_until_lost()).await.is_err() {
            self.0.is_too_long.store(true, Ordering::Relaxed);
        }
        self.stop();
    }

    /// Renews the lease at every third of its time, until it is lost. Waits longer after each failure, for a tenth of its time at most.
    async fn renew_until_lost(&self) {
        let (interval, max_pause) = (self.0.lease / 3, self.0.lease / 10);
        let mut backoff = Backoff::default();
        // Keys claimed together share pages. Renewed together, all rows of a page would be updated at once, without room for the new
        // versions on that page: each would move, with all of its index entries.
        let mut due = Instant::now() + interval.mul_f64(0.5 + fastrand::f64() / 2.0);
        loop {
            tokio::time::sleep_until(due).await;
            match self.renew().await {
                // A locked key is being finished or taken over: the next renewal shows which. Each run keeps its own schedule, or runs
                // answered together would stay together.
                Ok(RenewOutcome::Until(_) | RenewOutcome::Locked) => {
                    backoff.reset();
                    due = (due + interval).max(Instant::now());
                }
                Ok(RenewOutcome::Lost) | Err(StoreError::Lost) => return,
                Err(error) => {
                    tracing::warn!(token = self.token(), %error, "cannot renew a lease; retrying");
                    tokio::time::sleep(backoff.next_pause().min(max_pause)).await;
                }
            }
        }
    }

    /// Renews the lease once, and records when it was requested.
    #[doc(hidden)]
    pub async fn renew(&self) -> Result<RenewOutcome, StoreError> {
        let requested_at = DualInstant::now();
        let outcomes = self.0.store.renew(std::slice::from_ref(&self.0.lease_id), self.0.lease).await?;
        let outcome = outcomes.first().copied().unwrap_or(RenewOutcome::Lost);
        if matches!(outcome, RenewOutcome::Until(_)) {
            self.set_confirmed_at(requested_at);
        }
        Ok(outcome)
    }
}
