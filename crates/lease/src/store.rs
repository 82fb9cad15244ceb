//! The interface of lease stores.

use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

use super::claim::{Claim, ClaimOutcome};
use super::error::StoreError;
use super::lease_id::{BegunStep, FailOutcome, Failure, KeySnapshot, LeaseId, RefusedCall, RenewOutcome};
use super::step::Step;
use oncely_core::identity::Identity;

/// Keeps the steps of runs, and renews their leases: the part of a [`LeaseStore`] that a [`Run`](super::Run) uses.
///
/// A store has three obligations. Once another run's claim has taken a key over, by a greater token, calls with the older token change
/// nothing, except for the outcome of a call that the older run made: [`checkpoint`](Self::checkpoint) and
/// [`refuse_step`](Self::refuse_step) store it, held or not, until another run repeats the call or the key is completed. A run for which
/// [`begin_step`](Self::begin_step) returned [`StepState::Unknown`](super::StepState::Unknown) loses its lease by that, and a key that was
/// given up for no other unknown outcome may run again. And each call may be repeated, because replies may be lost: work already done is
/// answered as done.
///
/// A dropped future leaves its outcome unknown, like a lost reply. Every error except [`StoreError::Unavailable`] means that nothing was
/// written.
pub trait StepStore: Send + Sync + 'static {
    /// Extends leases to `lease` from now, but not beyond the time of their runs. The answers are in the order of the leases.
    fn renew(
        &self,
        lease_ids: &[LeaseId],
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<RenewOutcome>, StoreError>> + Send;

    /// Records that a step is about to be called, and renews the lease. `call` identifies the call, so that the record can be repeated.
    fn begin_step(
        &self,
        lease_id: &LeaseId,
        step: &Step,
        call: Uuid,
        lease: Duration,
    ) -> impl Future<Output = Result<BegunStep, StoreError>> + Send;

    /// Stores the result of a step that began, up to 64 KiB of JSON, and renews the lease.
    fn checkpoint(
        &self,
        lease_id: &LeaseId,
        step: &str,
        result: &Value,
        lease: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Records that a call of a step certainly did not happen, and renews the lease. Returns the next round: the same one if the call was a
    /// repetition, because that says nothing of the first, or if the step did not begin with the id of [`RefusedCall::Begun`].
    fn refuse_step(
        &self,
        lease_id: &LeaseId,
        step: &str,
        refused: RefusedCall,
        lease: Duration,
    ) -> impl Future<Output = Result<u32, StoreError>> + Send;
}

/// Keeps keys that runs hold for a limited time: the protocol of `oncely.claim_lease` and the related functions in PostgreSQL, on any
/// database.
///
/// Beside the obligations of a [`StepStore`]: one claim wins, and after a lease has run out its holder keeps the key until another run's
/// claim. `oncely::lease::conformance` (feature `testing`) tests all of it.
pub trait LeaseStore: StepStore {
    /// Returns the store's guarantees.
    fn facts(&self) -> Facts;

    /// Claims a key, or returns why it is not granted. The same claim repeated by the same owner is granted again with the same token.
    fn claim(&self, claim: &Claim<'_>) -> impl Future<Output = Result<ClaimOutcome, StoreError>> + Send;

    /// Completes the key, with a response of up to 64 KiB of JSON. Succeeds if this same lease has completed it already.
    fn complete(
        &self,
        lease_id: &LeaseId,
        response: Option<&Value>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends a run that failed, and counts an attempt.
    fn fail(
        &self,
        lease_id: &LeaseId,
        failure: &Failure<'_>,
    ) -> impl Future<Output = Result<FailOutcome, StoreError>> + Send;

    /// Releases the key and counts nothing: the next claim may have it at once. Returns false if the lease is lost.
    fn release(&self, lease_id: &LeaseId) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Returns the stored state of a key, for operators; `None` for an unknown key. No run depends on it.
    fn look_up(
        &self,
        identity: &Identity,
    ) -> impl Future<Output = Result<Option<KeySnapshot>, StoreError>> + Send;
}

/// The guarantees of a store beyond its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The answers that it still knows after a failover to another server or a crash.
    pub failover: Failover,
    /// The clock by which leases end.
    pub clock: StoreClock,
}

/// The answers that a store still knows after a crash or a failover. A lost key runs again: with the same step keys, under a greater token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failover {
    /// All answers.
    Keeps,
    /// As configured by its operator: PostgreSQL keeps all with a synchronous standby, and loses those that an asynchronous one lacks.
    AsConfigured,
    /// It may lose the latest, or all.
    Forgets,
}

/// The clock by which leases end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreClock {
    /// The server's: no process's clock matters.
    Server,
    /// This process's clock, set by the server's, with this maximum error. A takeover waits twice as long beyond the lease's end.
    Estimated(Duration),
}

impl StoreClock {
    /// Returns the time beyond its end that a lease is left to its holder.
    #[must_use]
    pub fn grace(self) -> Duration {
        match self {
            Self::Server => Duration::ZERO,
            Self::Estimated(error) => error.saturating_mul(2),
        }
    }
}
