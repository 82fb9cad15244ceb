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

use super::again::until_answered;
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

/// Time for a run to end by itself once it has to.
const DROPPED_AFTER: Duration = Duration::from_secs(2);

/// A key that this run holds in a store. See [`LeaseRunner`](super::LeaseRunner).
pub struct Run<S>(Arc<RunInner<S>>);

struct RunInner<S> {
    store: Arc<S>,
    held: LeaseId,
    grant: Grant,
    lease: Duration,
    belief: Mutex<DualInstant>,
    /// For results of steps.
    sealer: Sealer,
    /// Whether an encryption key of this run's results is missing in this process.
    lacks_key: AtomicBool,
    /// Cancelled when another run has the key, or this one has to end.
    lost: CancellationToken,
    /// Cancelled when the process no longer waits for records to be stored.
    abandon: CancellationToken,
    /// The error of the first step with unknown outcome.
    unknown: OnceLock<String>,
    /// The outcomes of calls that are not stored yet.
    owed: Mutex<Vec<UnrecordedOutcome>>,
    /// Whether the lease is lost because the run's time is over.
    too_long: AtomicBool,
    /// Number of calls in progress that the next run would not repeat.
    calls: watch::Sender<usize>,
}

/// Counts a call as in progress until it is dropped.
struct CallInProgress<'a>(&'a watch::Sender<usize>);

impl<'a> CallInProgress<'a> {
    fn new(calls: &'a watch::Sender<usize>) -> Self {
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

/// Records the withdrawal of a step as owed if its begin ends without an answer, also by being dropped: no call follows. While the begin
/// lasts, the step must not be withdrawn: a call may follow.
struct BeginGuard<'a> {
    owed: &'a Mutex<Vec<UnrecordedOutcome>>,
    not_called: Option<UnrecordedOutcome>,
}

impl Drop for BeginGuard<'_> {
    fn drop(&mut self) {
        lock(self.owed).extend(self.not_called.take());
    }
}

fn lock(owed: &Mutex<Vec<UnrecordedOutcome>>) -> MutexGuard<'_, Vec<UnrecordedOutcome>> {
    owed.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S> Clone for Run<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> std::fmt::Debug for Run<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("held", &self.0.held)
            .field("grant", &self.0.grant)
            .finish_non_exhaustive()
    }
}

impl<S: StepStore> Run<S> {
    /// Creates a run. `sealer` is for results of steps; `abandon` is cancelled when the process no longer waits for records to be stored.
    #[doc(hidden)]
    pub fn new(
        store: Arc<S>,
        held: LeaseId,
        grant: Grant,
        lease: Duration,
        belief: DualInstant,
        sealer: Sealer,
        abandon: CancellationToken,
    ) -> Self {
        Self(Arc::new(RunInner {
            store,
            held,
            grant,
            lease,
            belief: Mutex::new(belief),
            sealer,
            lacks_key: AtomicBool::new(false),
            lost: CancellationToken::new(),
            abandon,
            unknown: OnceLock::new(),
            owed: Mutex::default(),
            too_long: AtomicBool::new(false),
            calls: watch::Sender::new(0),
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

    /// Returns whether a run before this one crashed: its last step may have happened.
    #[must_use]
    pub fn is_takeover(&self) -> bool {
        self.0.grant.is_takeover
    }

    /// Waits until this run has to end: another run has the key, or its time is over. Two seconds later it is dropped. If another run has the
    /// key and this one is making a [step](Run::step) that is not repeated ([`Repeat::Never`], [`Repeat::Ask`]), it goes on until the step has
    /// ended: its outcome would be unknown. A worker decides the message, and an HTTP layer lets other requests with the key pass meanwhile,
    /// within the run's time; a [`LeaseRunner`](super::LeaseRunner) waits for it for the time of one more lease.
    pub async fn lost(&self) {
        self.0.lost.cancelled().await;
    }

    /// Waits until this run has to be dropped: it has had time to end by itself.
    #[doc(hidden)]
    pub async fn dropped(&self) {
        self.lost().await;
        tokio::time::sleep(DROPPED_AFTER).await;
    }

    /// Returns whether the run is making a call that the next run would not repeat. Dropped, its outcome would be unknown, and the key given
    /// up for it; so it goes on, where nothing waits for it.
    #[doc(hidden)]
    pub fn is_calling(&self) -> bool {
        *self.0.calls.borrow() > 0
    }

    /// Waits until no such call is in progress, and its outcome is stored.
    #[doc(hidden)]
    pub async fn called(&self) {
        // The sender lives as long as the run.
        let _ = self.0.calls.subscribe().wait_for(|count| *count == 0).await;
    }

    #[doc(hidden)]
    pub fn is_lost(&self) -> bool {
        self.0.lost.is_cancelled()
    }

    /// Returns whether the run's time is over, as far as this process knows. Another run does not necessarily hold the key.
    #[doc(hidden)]
    pub fn is_too_long(&self) -> bool {
        self.0.too_long.load(Ordering::Relaxed)
    }

    /// Makes an external call, unless an earlier run has done so: then returns its stored result without a call.
    ///
    /// The step is recorded and committed before the call, and its result is stored after it; both are retried until they succeed. If the
    /// process crashes in between, the rule of the step ([`Repeat`]) decides in the next run.
    ///
    /// # Errors
    /// The error of the call ([`StepError`]); [`HandlerError::OutcomeUnknown`] if an earlier call may have happened and must not be
    /// repeated; a lost lease. The work should return each of them.
    pub async fn step<T, F, Fut>(&self, step: &Step, call: F) -> Result<T, HandlerError>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(Call) -> Fut,
        Fut: Future<Output = Result<T, StepError>> + Send,
    {
        let begun = self.begin(step).await?;
        match begun.state {
            StepState::Done(result) => self.read(step, result),
            StepState::Unknown => Err(self.noted(step.unknown())),
            StepState::Run | StepState::Repeat => self.call(step, self.call_of(&begun), call).await,
        }
    }

    /// Like [`Run::step`]; if an earlier call may have happened and its rule forbids a repetition, asks the other side. `ask` returns the
    /// result if the call happened, and `None` if it certainly did not: then the call is made, in the next round.
    ///
    /// # Errors
    /// As for [`Run::step`]; an error of `ask` leaves the step unchanged for the next run.
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
        let begun = self.begin(step).await?;
        match begun.state {
            StepState::Done(result) => self.read(step, result),
            StepState::Run | StepState::Repeat => self.call(step, self.call_of(&begun), call).await,
            StepState::Unknown => match ask(self.call_of(&begun)).await? {
                Some(found) => {
                    self.store_result(step, &found).await?;
                    Ok(found)
                }
                None => {
                    self.pay(UnrecordedOutcome::Refused(step.name(), RefusedCall::Round(begun.round)))
                        .await?;
                    let again = self.begin(step).await?;
                    match again.state {
                        // An earlier run's outcome came late.
                        StepState::Done(result) => self.read(step, result),
                        // The refusal of a repeated call changes nothing in its own run: the next run asks again.
                        StepState::Unknown if again.round == begun.round => {
                            let step = step.name();
                            Err(HandlerError::transient(format!(
                                "it is unknown whether the step {step} happened"
                            )))
                        }
                        // Another try of this run has begun it since.
                        StepState::Unknown => Err(self.noted(step.unknown())),
                        StepState::Run | StepState::Repeat => {
                            self.call(step, self.call_of(&again), call).await
                        }
                    }
                }
            },
        }
    }

    fn call_of(&self, begun: &BegunStep) -> Call {
        Call {
            key: begun.call_key,
            round: begun.round,
            token: self.0.grant.token,
            is_repeat: begun.state == StepState::Repeat,
        }
    }

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
        let owed: Vec<_> =
            lock(&inner.owed).iter().filter(|owed| owed.step() == step.name()).cloned().collect();
        for owed in owed {
            self.pay(owed).await?;
        }
        // The same id in each try: a reply may be lost.
        let call = Uuid::now_v7();
        let not_called = UnrecordedOutcome::Refused(step.name(), RefusedCall::Begun(call));
        let mut guard = BeginGuard { owed: &inner.owed, not_called: Some(not_called) };
        let begun = self.begin_call(step, call).await?;
        guard.not_called = None;
        Ok(begun)
    }

    /// Records that a step is about to be called, repeating until this is answered in time.
    async fn begin_call(&self, step: &Step, call: Uuid) -> Result<BegunStep, HandlerError> {
        let inner = &*self.0;
        loop {
            // The run is dropped soon, which would be in the middle of the call.
            if self.is_lost() {
                return Err(self.give_up());
            }
            let ask = || async {
                let asked = DualInstant::now();
                let begun = inner.store.begin_step(&inner.held, step, call, inner.lease).await;
                begun.map(|begun| (begun, asked))
            };
            let begun = until_answered(&inner.lost, "begin a step", ask).await;
            let (begun, asked) = begun.map_err(|error| self.error_of(error))?;
            // If this process stalled after sending the request, it asks again.
            if asked.holds(inner.lease) {
                self.believe(asked);
                return Ok(begun);
            }
        }
    }

    async fn call<T, F, Fut>(&self, step: &Step, info: Call, call: F) -> Result<T, HandlerError>
    where
        T: Serialize,
        F: FnOnce(Call) -> Fut,
        Fut: Future<Output = Result<T, StepError>> + Send,
    {
        // For the next run its outcome would be unknown.
        let _in_progress =
            matches!(step.repeat(), Repeat::Never | Repeat::Ask).then(|| CallInProgress::new(&self.0.calls));
        at("lease.call.before");
        let called = call(info).await;
        at("lease.call.after");
        match called {
            Ok(found) => {
                self.store_result(step, &found).await?;
                Ok(found)
            }
            Err(StepError::Unknown(error)) => Err(HandlerError::transient(format!("{error:#}"))),
            Err(StepError::Away(error)) => Err(HandlerError::environment(format!("{error:#}"))),
            // The refusal of a repeated call says nothing of the first one: the store keeps the step unchanged. It is reported all the
            // same: an operator's permission to repeat it stays.
            Err(StepError::Refused(error)) => {
                self.pay(UnrecordedOutcome::Refused(step.name(), RefusedCall::Round(info.round))).await?;
                Err(if info.is_repeat { self.noted(step.refused_again(error)) } else { error })
            }
        }
    }

    /// Stores the result of a call that happened. If it can never be stored, an operator has to examine the key.
    async fn store_result<T: Serialize>(&self, step: &Step, found: &T) -> Result<(), HandlerError> {
        let stored = async { self.pay(UnrecordedOutcome::Done(step.name(), self.write(step, found)?)).await };
        stored.await.map_err(|error| step.unstored(error))
    }

    /// Stores the outcome of a call, repeating until it is stored. If the run is dropped before that, the end of the run stores it.
    async fn pay(&self, owed: UnrecordedOutcome) -> Result<(), HandlerError> {
        let inner = &*self.0;
        {
            let mut all = lock(&inner.owed);
            all.retain(|other| *other != owed);
            all.push(owed.clone());
        }
        let ask = || async {
            match &owed {
                UnrecordedOutcome::Done(name, result) => {
                    inner.store.checkpoint(&inner.held, name, result, inner.lease).await
                }
                UnrecordedOutcome::Refused(name, refused) => {
                    inner.store.refuse_step(&inner.held, name, *refused, inner.lease).await.map(drop)
                }
            }
        };
        let paid = until_answered(&inner.abandon, "store the result of a step", ask).await;
        lock(&inner.owed).retain(|other| *other != owed);
        paid.map_err(|error| self.error_of(error))
    }

    /// Stores the outcomes not stored yet. Even if another run has the key: it may have been given up only because this outcome was unknown.
    #[doc(hidden)]
    pub async fn pay_owed(&self) {
        let owed = std::mem::take(&mut *lock(&self.0.owed));
        for owed in owed {
            // Of a step that never began there is nothing to decide.
            let is_called = !owed.is_not_called();
            if self.pay(owed).await.is_err() && is_called {
                tracing::warn!(
                    token = self.token(),
                    "result of a step not stored: another run decides on it"
                );
            }
        }
    }

    fn place(&self, step: &Step) -> Place<'_> {
        Place::step_result(&self.0.held.identity, step.name())
    }

    /// Prepares a step's result for storing.
    #[doc(hidden)]
    pub fn write<T: Serialize>(&self, step: &Step, value: &T) -> Result<Value, HandlerError> {
        self.0.sealer.seal(&self.place(step), step.write(value)?).map_err(|error| {
            HandlerError::environment(format!(
                "the result of the step {} can't be encrypted: {error}",
                step.name()
            ))
        })
    }

    /// Reads a stored result; its encryption key may exist only in other processes.
    #[doc(hidden)]
    pub fn read<T: DeserializeOwned>(&self, step: &Step, stored: Value) -> Result<T, HandlerError> {
        let result = self.0.sealer.open(&self.place(step), stored).map_err(|error| {
            if matches!(error, CipherError::NoKey { .. }) {
                self.0.lacks_key.store(true, Ordering::Relaxed);
            }
            HandlerError::environment(format!(
                "the result of the step {} can't be read: {error}",
                step.name()
            ))
        })?;
        step.read(result)
    }

    /// Returns whether this process lacked an encryption key that the run needed, which is no fault of its message.
    #[doc(hidden)]
    pub fn lacks_key(&self) -> bool {
        self.0.lacks_key.load(Ordering::Relaxed)
    }

    /// Converts an error of the store to the error that ends the run.
    fn error_of(&self, error: StoreError) -> HandlerError {
        match error {
            StoreError::Lost => self.give_up(),
            StoreError::Refused(why) => HandlerError::permanent(why),
            // For a damaged record an operator is needed, and no call is made until then.
            error => HandlerError::transient(error.to_string()),
        }
    }

    /// Remembers that the outcome of a step is unknown: the work may return another error instead.
    fn noted(&self, error: HandlerError) -> HandlerError {
        if let HandlerError::OutcomeUnknown(why) = &error {
            self.0.unknown.get_or_init(|| why.clone());
        }
        error
    }

    /// Returns the error of the first step with unknown outcome.
    #[doc(hidden)]
    pub fn unknown(&self) -> Option<HandlerError> {
        self.0.unknown.get().map(|why| HandlerError::OutcomeUnknown(why.clone()))
    }

    /// Signals the run to end.
    #[doc(hidden)]
    pub fn stop(&self) {
        self.0.lost.cancel();
    }

    /// Signals the run to end because its lease is lost.
    #[doc(hidden)]
    pub fn give_up(&self) -> HandlerError {
        self.0.lost.cancel();
        HandlerError::transient("the lease of the key is lost")
    }

    fn believe(&self, belief: DualInstant) {
        *self.0.belief.lock().unwrap_or_else(PoisonError::into_inner) = belief;
    }

    /// Returns whether the lease is held according to the store's last answer; asks nothing.
    #[must_use]
    pub fn is_believed(&self) -> bool {
        !self.is_lost() && self.0.belief.lock().unwrap_or_else(PoisonError::into_inner).holds(self.0.lease)
    }

    #[doc(hidden)]
    pub fn held(&self) -> &LeaseId {
        &self.0.held
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
    pub fn abandon(&self) -> &CancellationToken {
        &self.0.abandon
    }

    /// Renews every third of the lease, until the lease is lost or the run's time is over, at `end`; then signals the run to end. Dropped
    /// with the run.
    #[doc(hidden)]
    pub async fn heartbeat(self, end: Instant) {
        if tokio::time::timeout_at(end, self.renew_until_lost()).await.is_err() {
            self.0.too_long.store(true, Ordering::Relaxed);
        }
        self.stop();
    }

    async fn renew_until_lost(&self) {
        let (usual, soon) = (self.0.lease / 3, self.0.lease / 10);
        let mut backoff = Backoff::default();
        // Keys claimed together share pages. Renewed together, all rows of a page would be updated at once, without room for the new
        // versions on that page: each would move, with all of its index entries.
        let mut due = Instant::now() + usual.mul_f64(0.5 + fastrand::f64() / 2.0);
        loop {
            tokio::time::sleep_until(due).await;
            match self.renew().await {
                // A locked key is being finished or taken over: the next renewal shows which. Each run keeps its own schedule, or runs
                // answered together would stay together.
                Ok(RenewOutcome::Until(_) | RenewOutcome::Locked) => {
                    backoff.reset();
                    due = (due + usual).max(Instant::now());
                }
                Ok(RenewOutcome::Lost) | Err(StoreError::Lost) => return,
                Err(error) => {
                    tracing::warn!(token = self.token(), %error, "cannot renew a lease; retrying");
                    tokio::time::sleep(backoff.next_pause().min(soon)).await;
                }
            }
        }
    }

    #[doc(hidden)]
    pub async fn renew(&self) -> Result<RenewOutcome, StoreError> {
        let asked = DualInstant::now();
        let renewed = self.0.store.renew(std::slice::from_ref(&self.0.held), self.0.lease).await?;
        let renewed = renewed.first().copied().unwrap_or(RenewOutcome::Lost);
        if matches!(renewed, RenewOutcome::Until(_)) {
            self.believe(asked);
        }
        Ok(renewed)
    }
}
