//! What is said under a lease, and answered.

use std::time::Duration;

use serde_json::Value;

pub use crate::pg::{BegunStep, StepState};

use crate::decide::KeyStatus;
use crate::identity::Identity;
use crate::reason::Reason;

/// Which lease of which key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Whose key.
    pub identity: Identity,
    /// The lease's number ([`Grant::token`](super::Grant::token)).
    pub token: i64,
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The lease is held for so long.
    Until(Duration),
    /// Another run has the key, this one's time is over, or it has ended.
    Lost,
}

/// How a run failed.
#[derive(Clone, Copy, Debug)]
pub struct Failure<'a> {
    /// For people; the first 8,000 characters are kept.
    pub error: &'a str,
    /// Given up at once, for this.
    pub reason: Option<Reason>,
    /// Given up as [`Reason::AttemptsExhausted`] when so many runs have failed: 1 to 10,000.
    pub max_attempts: u32,
    /// Until the next run: up to 3,650 days.
    pub delay: Duration,
}

/// What became of a failed run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// The next claim after the delay runs again.
    Retry {
        /// Runs that failed.
        attempts: u32,
    },
    /// It runs no more.
    GivenUp {
        /// Runs that failed.
        attempts: u32,
        /// Why.
        reason: Reason,
    },
    /// This very lease has completed the key.
    Completed,
    /// Another run has the key, or nobody has.
    Lost,
}

/// What is known of a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// In progress, completed or failed.
    pub status: KeyStatus,
    /// Who holds it.
    pub owner: Option<String>,
    /// Number of the last lease.
    pub token: i64,
    /// Runs whose end is known.
    pub attempts: u32,
    /// Runs that ended without a word, none of them reported since.
    pub crashes: u32,
    /// Why it was given up.
    pub reason: Option<Reason>,
    /// Of a completed key.
    pub response: Option<Value>,
}
