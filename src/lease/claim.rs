//! A claim, and what becomes of it.

use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::identity::Identity;
use crate::reason::Reason;

/// SHA-256 of what makes two payloads the same: by default of the exact bytes of the body, so that a key is one key for a worker, for
/// `oncely.claim` and for a store.
#[must_use]
pub fn fingerprint(body: &[u8]) -> [u8; 32] {
    Sha256::digest(body).into()
}

/// What is asked with a claim.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// Whose key.
    pub identity: &'a Identity,
    /// Of the payload ([`fingerprint`]).
    pub fingerprint: [u8; 32],
    /// Made anew for each acquisition, 1 to 255 bytes: by it a claim is known that is made again after a lost reply.
    pub owner: &'a str,
    /// Until somebody else may take the key over: a second to a day.
    pub lease: Duration,
    /// Until nothing is renewed any more: from `lease` to 30 days.
    pub max_run: Duration,
    /// How long the key is remembered after the last word about it: from `max_run` to 3,650 days.
    pub retention: Duration,
    /// Given up as [`Reason::Crash`] when so many runs ended without a word: 1 to 10,000.
    pub max_crashes: u32,
}

/// What became of a claim.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Claimed {
    /// Run, and end by [`complete`](super::LeaseStore::complete), [`fail`](super::LeaseStore::fail) or
    /// [`release`](super::LeaseStore::release).
    Granted(Grant),
    /// Another run holds the key, for so long at most unless it renews.
    InFlight(Duration),
    /// A run failed, and its delay has so long to go.
    Wait(Duration),
    /// It took effect: this was the response.
    Done(Option<Value>),
    /// The key came before with another payload: nothing of the first is told.
    Conflict,
    /// Given up before, or by this very claim.
    GivenUp {
        /// Why.
        reason: Reason,
        /// For people.
        detail: String,
    },
}

/// A lease that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its number: greater than that of each lease of this key before.
    pub token: i64,
    /// Which run this is, from 1; runs that ended without a word are not counted.
    pub attempt: u32,
    /// A run before this one ended without a word, and none has reported since: its last step may have happened.
    pub is_takeover: bool,
}
