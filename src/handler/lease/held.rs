//! A lease that is held: steps, renewals, and how it ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::belief::Belief;
use super::failed::{RunError, still};
use super::lines::{HeldKey, Lines};
use super::sessions::{After, Statement, statement};
use super::trail::Trail;
use super::{Call, LeaseTime, Said, Sessions, Step, StepError};
use crate::encryption::{CipherError, Place, Sealer};
use crate::failpoint::step as at;
use crate::fault::FaultClass;
use crate::handler::HandlerError;
use crate::identity::Identity;
use crate::pg::{self, BegunStep, Granted, Held, Renewal, StepState};

tokio::task_local! {
    /// Within a transaction of the lease with this number.
    static WRITING: i64;
}

/// A key that this run holds. See [`LeasedHandler`](super::LeasedHandler).
#[derive(Clone)]
pub struct Lease(pub(super) Arc<Inner>);

/// A key that was granted.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    pub(crate) identity: Identity,
    pub(crate) granted: Granted,
    /// When the claim that was granted left, by both clocks.
    pub(crate) asked: (Instant, SystemTime),
}

pub(super) struct Inner {
    pub(super) lines: Lines,
    pub(super) identity: Identity,
    pub(super) granted: Granted,
    pub(super) time: LeaseTime,
    pub(super) sealer: Sealer,
    pub(super) trail: Trail,
    belief: Mutex<Belief>,
    lacks_key: AtomicBool,
    /// What became of a call, and is not stored yet.
    owed: Mutex<Option<Owed>>,
    /// Another run has the key, or this one is to end.
    pub(super) lost: CancellationToken,
    /// The process does not wait any longer.
    pub(super) abandon: CancellationToken,
}

/// What is certain of a step.
#[derive(Clone)]
enum Owed {
    Done(&'static str, Value),
    Refused(&'static str, u32, &'static str),
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease")
            .field("token", &self.0.granted.token)
            .field("attempt", &self.0.granted.attempt)
            .finish_non_exhaustive()
    }
}

impl Lease {
    pub(crate) fn new(
        lines: Lines,
        claimed: Claimed,
        time: LeaseTime,
        sealer: Sealer,
        trail: Trail,
        abandon: CancellationToken,
    ) -> Self {
        let Claimed { identity, granted, asked } = claimed;
        let belief = Mutex::new(Belief::since(asked));
        let (lacks_key, lost) = (AtomicBool::new(false), CancellationToken::new());
        Self(Arc::new(Inner {
            lines,
            identity,
            granted,
            time,
            sealer,
            trail,
            belief,
            lacks_key,
            owed: Mutex::default(),
            lost,
            abandon,
        }))
    }

    /// Number of the lease: greater than that of each lease of this key before. A side that compares it refuses late calls of older runs.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.0.granted.token
    }

    /// Which run this is, from 1; runs that ended without a word are not counted.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.granted.attempt
    }

    /// A run before this one ended without a word: its last step may have happened.
    #[must_use]
    pub fn is_takeover(&self) -> bool {
        self.0.granted.crashes > 0
    }

    /// Waits until this run is to end: another one has the key, `max_run` is over, or the worker stops. Two seconds later it is dropped.
    pub async fn lost(&self) {
        self.0.lost.cancelled().await;
    }

    /// Calls something outside, unless an earlier run has done it: then its result is returned, and nothing is called.
    ///
    /// The call is announced and committed before it is made, and its result is stored behind it; both are tried until they are done. If
    /// the process dies in between, the next run's rule decides ([`Repeat`](super::Repeat)).
    ///
    /// # Errors
    /// What the call failed with ([`StepError`]); [`HandlerError::OutcomeUnknown`] where an earlier call may have happened and must not be
    /// repeated; a lost lease. All of them are for the handler to return.
    pub async fn step<T, F, Fut>(&self, step: &Step, call: F) -> Result<T, HandlerError>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(Call) -> Fut,
        Fut: Future<Output = Result<T, StepError>> + Send,
    {
        let begun = self.begin(step).await?;
        match begun.state {
            StepState::Done(result) => self.read(step, result),
            StepState::Unknown => Err(step.unknown()),
            StepState::Run | StepState::Repeat => self.call(step, self.call_of(&begun), call).await,
        }
    }

    /// As [`Lease::step`]; where an earlier call may have happened and its rule forbids to repeat it, the other side is asked. `ask` returns
    /// the result if it happened, and `None` if it did certainly not: then it is called, in the next round.
    ///
    /// # Errors
    /// As [`Lease::step`]; what `ask` fails with leaves all as it is, for the next run.
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
                    self.happened(step, &found).await?;
                    Ok(found)
                }
                None => {
                    self.refuse(step.name, begun.round, "the other side does not know it").await?;
                    let again = self.begin(step).await?;
                    self.call(step, self.call_of(&again), call).await
                }
            },
        }
    }

    /// A step whose effect is in PostgreSQL: what `work` writes and its result are one commit, under the lease. An earlier run's result
    /// is returned, and nothing is written. `name` is the step's, 1 to 255 bytes.
    ///
    /// # Errors
    /// What `work` fails with; a lost lease. If the answer to COMMIT is lost, the run fails, and the next one knows.
    pub async fn transaction<T, W>(&self, name: &'static str, work: W) -> Result<T, HandlerError>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        W: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, HandlerError>> + Send + 'static,
    {
        let step = Step::new(name, super::Repeat::Always);
        let me = self.clone();
        let asked = Belief::now();
        self.outside_of_a_transaction()?;
        let statement: Statement<Result<T, Value>, RunError> = Box::new(move |session| {
            Box::pin(async move {
                let limit = me.0.lines.own.limit();
                let mut transaction = pg::within(limit, pg::begin(&mut session.connection)).await?;
                let done = pg::within(limit, pg::step_result(&mut transaction, me.held(), name)).await?;
                if let Some(result) = done {
                    pg::within(limit, transaction.rollback()).await?;
                    return Ok(Err(result));
                }
                let own = pg::within(limit, pg::transaction_id(&mut transaction)).await?;
                pg::within(limit, pg::enter_handler(&mut transaction, pg::LockWait::Session)).await?;
                let written = me.in_time(work(&mut transaction)).await?;
                let result = me.write(&step, &written)?;
                still(&mut transaction, &own).await?;
                let stored =
                    pg::checkpoint(&mut transaction, me.held(), name, &result, true, me.0.time.lease);
                pg::within(limit, stored).await?;
                at("lease.transaction.before");
                // With what the work has deferred.
                transaction.commit().await?;
                at("lease.transaction.after");
                Ok(Ok(written))
            })
        });
        let written = self.0.lines.writes.within(After::Close, self.writing_time(), statement);
        match written.await {
            Ok(Ok(written)) => {
                self.believe(asked);
                Ok(written)
            }
            Ok(Err(result)) => self.read(&step, result),
            Err(RunError::Handler(error)) => Err(error),
            Err(RunError::Ours(error)) if pg::is_lease_lost(&error) => Err(self.give_up()),
            Err(RunError::Ours(error)) => Err(HandlerError::Database(error)),
        }
    }

    pub(super) fn held(&self) -> Held<'_> {
        Held { identity: &self.0.identity, token: self.0.granted.token }
    }

    /// A handler's work in a transaction of ours, in the time of a run.
    pub(super) async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, HandlerError>>,
    ) -> Result<T, HandlerError> {
        let limit = self.0.time.max_run;
        match tokio::time::timeout(limit, WRITING.scope(self.token(), work)).await {
            Ok(done) => done,
            Err(_) => Err(HandlerError::transient(format!(
                "a transaction of the handler took longer than {limit:?} (consumers.lease.max_run)"
            ))),
        }
    }

    /// A step in a transaction of the same lease would wait for the row that the transaction holds, and the transaction for it.
    fn outside_of_a_transaction(&self) -> Result<(), HandlerError> {
        match WRITING.try_with(|writing| *writing == self.token()) {
            Ok(true) => Err(HandlerError::permanent(
                "a step was begun inside a transaction of its own lease: begin it before the transaction, or after it",
            )),
            Ok(false) | Err(_) => Ok(()),
        }
    }

    fn call_of(&self, begun: &BegunStep) -> Call {
        Call {
            key: begun.call_key,
            round: begun.round,
            token: self.0.granted.token,
            is_repeat: begun.state == StepState::Repeat,
        }
    }

    fn believe(&self, belief: Belief) {
        *self.0.belief.lock().unwrap_or_else(PoisonError::into_inner) = belief;
    }

    fn is_believed(&self) -> bool {
        self.0.belief.lock().unwrap_or_else(PoisonError::into_inner).holds(self.0.time.lease)
    }

    /// Was the run told that its lease is lost?
    pub(crate) fn is_lost(&self) -> bool {
        self.0.lost.is_cancelled()
    }

    /// The run is to end.
    pub(crate) fn give_up(&self) -> HandlerError {
        self.0.lost.cancel();
        HandlerError::transient("the lease of the key is lost")
    }

    /// A step's result as it is stored.
    fn write<T: Serialize>(&self, step: &Step, value: &T) -> Result<Value, HandlerError> {
        let value = step.write(value)?;
        let bytes = pg::json_text(&value).len();
        if bytes > pg::LARGEST_JSON {
            return Err(HandlerError::permanent(format!(
                "the result of the step {} has {bytes} bytes as JSON; {} are allowed: keep what is large elsewhere, and its id here",
                step.name,
                pg::LARGEST_JSON
            )));
        }
        let place = Place::step_result(&self.0.identity, step.name);
        self.0.sealer.seal(&place, value).map_err(|error| {
            HandlerError::environment(format!(
                "the result of the step {} can't be encrypted: {error}",
                step.name
            ))
        })
    }

    /// A stored result; another process may have the key that opens it.
    fn read<T: DeserializeOwned>(&self, step: &Step, stored: Value) -> Result<T, HandlerError> {
        let place = Place::step_result(&self.0.identity, step.name);
        let result = self.0.sealer.open(&place, stored).map_err(|error| {
            if matches!(error, CipherError::NoKey { .. }) {
                self.0.lacks_key.store(true, Ordering::Relaxed);
            }
            HandlerError::environment(format!("the result of the step {} can't be read: {error}", step.name))
        })?;
        step.read(result)
    }

    /// Did this process lack the key to something that the run needed? Its message has done nothing wrong.
    pub(crate) fn lacks_key(&self) -> bool {
        self.0.lacks_key.load(Ordering::Relaxed)
    }

    async fn begin(&self, step: &Step) -> Result<BegunStep, HandlerError> {
        self.outside_of_a_transaction()?;
        // Nothing is called whose result could not be stored.
        self.0.sealer.is_able(&Place::step_result(&self.0.identity, step.name)).map_err(|error| {
            self.0.lacks_key.store(true, Ordering::Relaxed);
            HandlerError::environment(format!(
                "the result of the step {} could not be encrypted: {error}",
                step.name
            ))
        })?;
        // The same one in each try: a reply may be lost.
        let call = Uuid::now_v7();
        let (name, rule) = (step.name, step.repeat.rule());
        let asked = Belief::now();
        let begun = self
            .say(&self.0.lost, "a step begins", move |me, connection| {
                Box::pin(async move {
                    at("lease.begin.before");
                    let begun =
                        pg::begin_step(connection, me.held(), name, rule, call, me.0.time.lease).await;
                    at("lease.begin.after");
                    begun
                })
            })
            .await?;
        self.believe(asked);
        // This process may have stood still since the question left.
        if !self.is_believed() {
            let is_held = self.renew().await.map_err(|said| self.told(said))?;
            if !is_held || !self.is_believed() {
                return Err(self.give_up());
            }
        }
        Ok(begun)
    }

    async fn call<T, F, Fut>(&self, step: &Step, info: Call, call: F) -> Result<T, HandlerError>
    where
        T: Serialize,
        F: FnOnce(Call) -> Fut,
        Fut: Future<Output = Result<T, StepError>> + Send,
    {
        at("lease.call.before");
        let called = call(info).await;
        at("lease.call.after");
        match called {
            Ok(found) => {
                self.happened(step, &found).await?;
                Ok(found)
            }
            Err(StepError::Unknown(error)) => Err(HandlerError::transient(format!("{error:#}"))),
            Err(StepError::Away(error)) => Err(HandlerError::environment(format!("{error:#}"))),
            // That a repeated call was refused says nothing of the first one: the step keeps its key. It is said all the same: an operator's
            // leave to repeat it stays.
            Err(StepError::Refused(error)) => {
                self.refuse(step.name, info.round, "refused").await?;
                Err(if info.is_repeat { step.refused_again(error) } else { error })
            }
        }
    }

    /// It happened: stored or lost; where it can't be stored at all, a person must look.
    async fn happened<T: Serialize>(&self, step: &Step, found: &T) -> Result<(), HandlerError> {
        let stored = async { self.pay(Owed::Done(step.name, self.write(step, found)?)).await };
        stored.await.map_err(|error| step.unstored(error))
    }

    /// Says what became of a call until it is stored. Where the handler is dropped before, the end of its run says it.
    async fn pay(&self, owed: Owed) -> Result<(), HandlerError> {
        *self.0.owed.lock().unwrap_or_else(PoisonError::into_inner) = Some(owed.clone());
        let paid = match owed {
            Owed::Done(name, result) => self.checkpoint(name, result).await,
            Owed::Refused(name, round, why) => self.say_refused(name, round, why).await,
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

    async fn checkpoint(&self, name: &'static str, result: Value) -> Result<(), HandlerError> {
        let asked = Belief::now();
        self.say(&self.0.abandon, "a step's result is stored", move |me, connection| {
            let result = result.clone();
            Box::pin(async move {
                at("lease.checkpoint.before");
                let stored =
                    pg::checkpoint(connection, me.held(), name, &result, false, me.0.time.lease).await;
                at("lease.checkpoint.after");
                stored
            })
        })
        .await?;
        self.believe(asked);
        Ok(())
    }

    async fn refuse(&self, name: &'static str, round: u32, why: &'static str) -> Result<(), HandlerError> {
        self.pay(Owed::Refused(name, round, why)).await
    }

    async fn say_refused(
        &self,
        name: &'static str,
        round: u32,
        why: &'static str,
    ) -> Result<(), HandlerError> {
        self.say(&self.0.abandon, "a step is refused", move |me, connection| {
            Box::pin(async move {
                pg::refuse_step(connection, me.held(), name, round, why, me.0.time.lease).await.map(drop)
            })
        })
        .await
    }

    async fn say<T: Send + 'static>(
        &self,
        until: &CancellationToken,
        what: &str,
        make: impl for<'c> Fn(Lease, &'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
        + Clone
        + Send
        + 'static,
    ) -> Result<T, HandlerError> {
        self.said(&self.0.lines.own, until, what, make).await.map_err(|said| self.told(said))
    }

    pub(super) async fn said<T: Send + 'static>(
        &self,
        sessions: &Arc<Sessions>,
        until: &CancellationToken,
        what: &str,
        make: impl for<'c> Fn(Lease, &'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
        + Clone
        + Send
        + 'static,
    ) -> Result<T, Said> {
        let say = || {
            let (me, make) = (self.clone(), make.clone());
            statement(move |connection| make(me, connection))
        };
        sessions.say(until, what, say).await
    }

    fn told(&self, said: Said) -> HandlerError {
        match said {
            Said::Lost => self.give_up(),
            Said::Abandoned => HandlerError::transient("the run ends"),
            // Arguments that can't be right stay so; the rest may pass, and is counted.
            Said::Fault(fault) if fault.class == FaultClass::Poison => {
                HandlerError::permanent(fault.to_string())
            }
            Said::Fault(fault) => HandlerError::transient(fault.to_string()),
        }
    }

    /// Makes the lease end later, together with others. False: it is lost.
    pub(crate) async fn renew(&self) -> Result<bool, Said> {
        let asked = Belief::now();
        at("lease.renew.before");
        let renewed = self
            .0
            .lines
            .own
            .until_answered(&self.0.lost, "a lease is renewed", || self.0.lines.renewing.say(self.key()))
            .await?;
        if renewed == Renewal::Renewed {
            self.believe(asked);
        }
        Ok(renewed != Renewal::Lost)
    }

    pub(super) fn key(&self) -> HeldKey {
        HeldKey { identity: self.0.identity.clone(), token: self.0.granted.token }
    }
}
