//! A run under a lease of a store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::claim::Grant;
use super::error::StoreError;
use super::held::{BegunStep, Held, Renewed, StepState};
use super::store::LeaseStore;
use crate::backoff::Backoff;
use crate::handler::HandlerError;
use crate::handler::lease::{Belief, Call, Step, StepError};

/// A key that this run holds in a store. See [`LeaseRunner`](super::LeaseRunner).
pub struct Run<S>(Arc<Inner<S>>);

struct Inner<S> {
    store: Arc<S>,
    held: Held,
    grant: Grant,
    lease: Duration,
    belief: Mutex<Belief>,
    lost: CancellationToken,
    /// The first step whose outcome is not known.
    unknown: OnceLock<String>,
    /// What became of a call, and is not stored yet.
    owed: Mutex<Option<Owed>>,
    /// It is lost because its time is over.
    too_long: AtomicBool,
}

/// What is certain of a step.
#[derive(Clone)]
enum Owed {
    Done(Step, Value),
    Refused(Step, u32),
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

impl<S: LeaseStore> Run<S> {
    pub(super) fn new(store: Arc<S>, held: Held, grant: Grant, lease: Duration, belief: Belief) -> Self {
        let (belief, lost, unknown) = (Mutex::new(belief), CancellationToken::new(), OnceLock::new());
        let too_long = AtomicBool::new(false);
        let owed = Mutex::default();
        Self(Arc::new(Inner { store, held, grant, lease, belief, lost, unknown, owed, too_long }))
    }

    /// Number of the lease: greater than that of each lease of this key before. A side that compares it refuses late calls of older runs.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.0.grant.token
    }

    /// Which run this is, from 1; runs that ended without a word are not counted.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.grant.attempt
    }

    /// A run before this one ended without a word: its last step may have happened.
    #[must_use]
    pub fn is_takeover(&self) -> bool {
        self.0.grant.is_takeover
    }

    /// Waits until this run is to end: another one has the key, or its time is over. Two seconds later it is dropped.
    pub async fn lost(&self) {
        self.0.lost.cancelled().await;
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.0.lost.is_cancelled()
    }

    /// Is its time over, as far as this process knows? Nobody else need have the key.
    pub(crate) fn is_too_long(&self) -> bool {
        self.0.too_long.load(Ordering::Relaxed)
    }

    /// Calls something outside, unless an earlier run has done it: then its result is returned, and nothing is called. As
    /// [`Lease::step`](super::Lease::step).
    ///
    /// # Errors
    /// What the call failed with ([`StepError`]); [`HandlerError::OutcomeUnknown`] where an earlier call may have happened and must not be
    /// repeated; a lost lease. All of them are for the run to return.
    pub async fn step<T, F, Fut>(&self, step: &Step, call: F) -> Result<T, HandlerError>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(Call) -> Fut,
        Fut: Future<Output = Result<T, StepError>> + Send,
    {
        let begun = self.begin(step).await?;
        match begun.state {
            StepState::Done(result) => step.read(result),
            StepState::Unknown => Err(self.noted(step.unknown())),
            StepState::Run | StepState::Repeat => self.call(step, self.call_of(&begun), call).await,
        }
    }

    /// As [`Run::step`]; where an earlier call may have happened and its rule forbids to repeat it, the other side is asked. `ask` returns
    /// the result if it happened, and `None` if it did certainly not: then it is called, in the next round.
    ///
    /// # Errors
    /// As [`Run::step`]; what `ask` fails with leaves all as it is, for the next run.
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
            StepState::Done(result) => step.read(result),
            StepState::Run | StepState::Repeat => self.call(step, self.call_of(&begun), call).await,
            StepState::Unknown => match ask(self.call_of(&begun)).await? {
                Some(found) => {
                    self.checkpoint(step, &found).await?;
                    Ok(found)
                }
                None => {
                    self.refuse(step, begun.round).await?;
                    let again = self.begin(step).await?;
                    self.call(step, self.call_of(&again), call).await
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
        // The same one in each try: a reply may be lost.
        let call = Uuid::now_v7();
        let inner = &*self.0;
        let mut backoff = Backoff::default();
        loop {
            // It is dropped soon: in the middle of the call.
            if self.is_lost() {
                return Err(self.give_up());
            }
            let asked = Belief::now();
            match inner.store.begin_step(&inner.held, step, call, inner.lease).await {
                // This process may have stood still since the question left: then it is asked again.
                Ok(begun) if asked.holds(inner.lease) => {
                    self.believe(asked);
                    return Ok(begun);
                }
                Ok(_) => {}
                Err(error) => self.again(error, "a step begins", &mut backoff).await?,
            }
        }
    }

    async fn call<T, F, Fut>(&self, step: &Step, info: Call, call: F) -> Result<T, HandlerError>
    where
        T: Serialize,
        F: FnOnce(Call) -> Fut,
        Fut: Future<Output = Result<T, StepError>> + Send,
    {
        match call(info).await {
            Ok(found) => {
                self.checkpoint(step, &found).await?;
                Ok(found)
            }
            Err(StepError::Unknown(error)) => Err(HandlerError::transient(format!("{error:#}"))),
            Err(StepError::Away(error)) => Err(HandlerError::environment(format!("{error:#}"))),
            // Of a repeated call it says nothing of the first one: the store keeps the step as it is.
            Err(StepError::Refused(error)) => {
                self.refuse(step, info.round).await?;
                Err(if info.is_repeat { self.noted(step.refused_again(error)) } else { error })
            }
        }
    }

    /// It happened: stored or lost; where it can't be stored at all, a person must look.
    async fn checkpoint<T: Serialize>(&self, step: &Step, found: &T) -> Result<(), HandlerError> {
        let stored = async { self.pay(Owed::Done(*step, step.write(found)?)).await };
        stored.await.map_err(|error| step.unstored(error))
    }

    /// Says what became of a call until it is stored. Where the run is dropped before, its end says it.
    async fn pay(&self, owed: Owed) -> Result<(), HandlerError> {
        *self.0.owed.lock().unwrap_or_else(PoisonError::into_inner) = Some(owed.clone());
        let paid = match &owed {
            Owed::Done(step, result) => self.store_result(step, result).await,
            Owed::Refused(step, round) => self.say_refused(step, *round).await,
        };
        self.0.owed.lock().unwrap_or_else(PoisonError::into_inner).take();
        paid
    }

    /// Says what is owed yet. Though another run has the key, it may have been given up because nobody knew this.
    pub(super) async fn pay_owed(&self) {
        let owed = self.0.owed.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(owed) = owed
            && self.pay(owed).await.is_err()
        {
            tracing::warn!(
                token = self.token(),
                "what became of a call is not stored: its key is another run's"
            );
        }
    }

    async fn store_result(&self, step: &Step, result: &Value) -> Result<(), HandlerError> {
        let inner = &*self.0;
        let mut backoff = Backoff::default();
        loop {
            match inner.store.checkpoint(&inner.held, step.name(), result, inner.lease).await {
                Ok(()) => return Ok(()),
                Err(error) => self.again(error, "a step's result is stored", &mut backoff).await?,
            }
        }
    }

    async fn refuse(&self, step: &Step, round: u32) -> Result<(), HandlerError> {
        self.pay(Owed::Refused(*step, round)).await
    }

    async fn say_refused(&self, step: &Step, round: u32) -> Result<(), HandlerError> {
        let inner = &*self.0;
        let mut backoff = Backoff::default();
        loop {
            match inner.store.refuse_step(&inner.held, step.name(), round, inner.lease).await {
                Ok(_) => return Ok(()),
                Err(error) => self.again(error, "a step is refused", &mut backoff).await?,
            }
        }
    }

    /// After a pause it is said again, or the run ends by this error.
    async fn again(&self, error: StoreError, what: &str, backoff: &mut Backoff) -> Result<(), HandlerError> {
        match error {
            StoreError::Lost => Err(self.give_up()),
            StoreError::Unavailable(error) => {
                tracing::warn!(token = self.token(), error = %format_args!("{error:#}"), "{what}: the store can't be asked; tried again");
                tokio::time::sleep(backoff.next()).await;
                Ok(())
            }
            StoreError::Refused(why) => Err(HandlerError::permanent(why)),
            // A person must look, and nothing is called meanwhile.
            error @ StoreError::Damaged(_) => Err(HandlerError::transient(error.to_string())),
        }
    }

    /// Remembers that the outcome of a step is not known: whoever runs it may say so by other words.
    fn noted(&self, error: HandlerError) -> HandlerError {
        if let HandlerError::OutcomeUnknown(why) = &error {
            self.0.unknown.get_or_init(|| why.clone());
        }
        error
    }

    /// The outcome of a step is not known.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    pub(crate) fn unknown(&self) -> Option<HandlerError> {
        self.0.unknown.get().map(|why| HandlerError::OutcomeUnknown(why.clone()))
    }

    /// Tells the run that it is to end.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    pub(crate) fn stop(&self) {
        self.0.lost.cancel();
    }

    /// The run is to end.
    fn give_up(&self) -> HandlerError {
        self.0.lost.cancel();
        HandlerError::transient("the lease of the key is lost")
    }

    fn believe(&self, belief: Belief) {
        *self.0.belief.lock().unwrap_or_else(PoisonError::into_inner) = belief;
    }

    /// Is the lease held by what was heard last, without a question?
    #[must_use]
    pub fn is_believed(&self) -> bool {
        !self.is_lost() && self.0.belief.lock().unwrap_or_else(PoisonError::into_inner).holds(self.0.lease)
    }

    pub(super) fn held(&self) -> &Held {
        &self.0.held
    }

    /// Renews every third of the lease, until the run's time is over, which is `in_time`. Whoever runs it drops it with the run.
    pub(super) async fn heartbeat(self, in_time: Duration) {
        let inner = &*self.0;
        let end = Instant::now() + in_time;
        let (usual, soon) = (inner.lease / 3, inner.lease / 10);
        let mut pause = usual;
        loop {
            let next = Instant::now() + pause;
            if next >= end {
                tokio::time::sleep_until(end).await;
                inner.too_long.store(true, Ordering::Relaxed);
                break;
            }
            tokio::time::sleep_until(next).await;
            let asked = Belief::now();
            match inner.store.renew(std::slice::from_ref(&inner.held), inner.lease).await.as_deref() {
                Ok([Renewed::Until(_)]) => {
                    self.believe(asked);
                    pause = usual;
                }
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(token = self.token(), %error, "a lease is not renewed; tried again");
                    pause = soon;
                }
            }
        }
        inner.lost.cancel();
    }
}
