//! A claim and its result.

use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use oncely_core::identity::Identity;
use oncely_core::reason::Reason;

/// Computes the fingerprint of a payload, which decides whether two payloads are the same: by default SHA-256 of the exact bytes of the
/// body, so that a key is one key for a worker, for `oncely.claim` and for a store.
#[must_use]
pub fn fingerprint(body: &[u8]) -> [u8; 32] {
    Sha256::digest(body).into()
}

/// The arguments of a claim.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The identity of the key.
    pub identity: &'a Identity,
    /// Fingerprint of the payload ([`fingerprint`]).
    pub fingerprint: [u8; 32],
    /// Unique for each acquisition, 1 to 255 bytes: identifies a claim that is repeated after a lost reply.
    pub owner: &'a str,
    /// Time until another run may take the key over: a second to a day.
    pub lease: Duration,
    /// Time after which the lease is no longer renewed: from `lease` to 30 days.
    pub max_run: Duration,
    /// Time that the key is kept after its last change: from `max_run` to 3,650 days.
    pub retention: Duration,
    /// Number of crashed runs (ended without a report) after which the key is given up as [`Reason::Crash`]: 1 to 10,000.
    pub max_crashes: u32,
}

/// The result of a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimOutcome {
    /// Run, then end the run by [`complete`](super::LeaseStore::complete), [`fail`](super::LeaseStore::fail) or
    /// [`release`](super::LeaseStore::release).
    Granted(Grant),
    /// Another run holds the key, for at most this time unless it renews.
    InFlight(Duration),
    /// A run failed; this time of its delay is left.
    Wait(Duration),
    /// The key is completed; its response.
    Done(Option<Value>),
    /// The key was used with another payload. Nothing of the first is revealed.
    Conflict,
    /// The key was given up earlier or by this claim.
    GivenUp {
        /// The reason code.
        reason: Reason,
        /// A description for operators.
        detail: String,
    },
}

/// A granted lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The number of the lease, greater than those of all earlier leases of this key.
    pub token: i64,
    /// The number of this run, from 1; crashed runs are not counted.
    pub attempt: u32,
    /// Whether an earlier run of the key crashed and none has reported since: its last step may have happened.
    pub is_takeover: bool,
}
