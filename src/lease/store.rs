//! What a lease store does.

use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

use super::claim::{Claim, Claimed};
use super::error::StoreError;
use super::held::{BegunStep, Failed, Failure, Held, Known, Renewed};
use crate::handler::lease::Step;
use crate::identity::Identity;

/// Keeps keys that runs hold for a time: what `oncely.claim_lease` and its neighbours do in PostgreSQL, on any database.
///
/// A store owes three things. One claim wins. A lease that has run out takes nothing from its holder: another run's claim does, by a greater
/// token, and from then on nothing that is said with the older token changes anything. And each call may be made again: a reply may be lost,
/// so what was done already is answered as done. `oncely::lease::conformance` (feature `testing`) tries all of it.
///
/// Whoever drops a future before it is answered does not know what became of it, as after a lost reply. Every error but
/// [`StoreError::Unavailable`] means that nothing was written.
pub trait LeaseStore: Send + Sync + 'static {
    /// What the store promises, and what not.
    fn facts(&self) -> Facts;

    /// Holds a key, or says why not. The same claim again, by the same owner, is granted again with the same token.
    fn claim(&self, claim: &Claim<'_>) -> impl Future<Output = Result<Claimed, StoreError>> + Send;

    /// Makes leases end `lease` from now, never later than their run may last. The answers stand in the order of the leases.
    fn renew(
        &self,
        held: &[Held],
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<Renewed>, StoreError>> + Send;

    /// Says that a step is about to be called, and renews the lease. `call`: this very call, so that it may be said again.
    fn begin_step(
        &self,
        held: &Held,
        step: &Step,
        call: Uuid,
        lease: Duration,
    ) -> impl Future<Output = Result<BegunStep, StoreError>> + Send;

    /// Stores the result of a step that began, 64 KiB of JSON at most, and renews the lease.
    fn checkpoint(
        &self,
        held: &Held,
        step: &str,
        result: &Value,
        lease: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Says that a step's call of this round did certainly not happen, and renews the lease. Returns the round that comes next: the same one
    /// where the call was a repeated one, because that says nothing of the first.
    fn refuse_step(
        &self,
        held: &Held,
        step: &str,
        round: u32,
        lease: Duration,
    ) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// Completes the key, with a response of 64 KiB of JSON at most. Done already by this very lease is done.
    fn complete(
        &self,
        held: &Held,
        response: Option<&Value>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends a run that failed: an attempt is counted.
    fn fail(
        &self,
        held: &Held,
        failure: &Failure<'_>,
    ) -> impl Future<Output = Result<Failed, StoreError>> + Send;

    /// Gives the key back, and counts nothing: the next claim may have it at once. False: the lease is lost.
    fn release(&self, held: &Held) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// What is known of a key, for a person who asks. Decides nothing.
    fn look_up(&self, identity: &Identity) -> impl Future<Output = Result<Option<Known>, StoreError>> + Send;
}

/// What a store promises beyond its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Of what it has answered, after it has failed over to another server or has crashed.
    pub failover: Failover,
    /// Whose time decides when a lease is over.
    pub clock: StoreClock,
}

/// What of its answers a store still knows after a crash or a failover. What it forgot runs again: steps by the same keys, under a greater
/// token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failover {
    /// All of them.
    Keeps,
    /// As its operator has set it up: PostgreSQL keeps all with a synchronous standby, and forgets what an asynchronous one lacks.
    AsConfigured,
    /// It may forget the latest, or all.
    Forgets,
}

/// Whose time decides when a lease is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreClock {
    /// The server's: no process's clock matters.
    Server,
    /// This process's, set by what the server says, and off by so much at most. A takeover waits twice as long beyond the lease's end.
    Estimated(Duration),
}

impl StoreClock {
    /// How long beyond its end a lease is left to its holder.
    #[must_use]
    pub fn grace(self) -> Duration {
        match self {
            Self::Server => Duration::ZERO,
            Self::Estimated(error) => error.saturating_mul(2),
        }
    }
}
