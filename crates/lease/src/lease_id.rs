//! Arguments and results of calls under a lease.

use std::time::Duration;

use serde_json::Value;

pub use oncely_postgres::{BegunStep, RefusedCall, RenewOutcome, StepState};

use oncely_core::decide::KeyStatus;
use oncely_core::identity::Identity;
use oncely_core::reason::Reason;
use oncely_postgres as pg;

/// A lease of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseId {
    /// The identity of the key.
    pub identity: Identity,
    /// The number of the lease ([`Grant::token`](super::Grant::token)).
    pub token: i64,
}

impl LeaseId {
    #[doc(hidden)]
    pub fn as_row(&self) -> pg::LeaseIdRef<'_> {
        pg::LeaseIdRef { identity: &self.identity, token: self.token }
    }
}

/// The failure of a run.
#[derive(Clone, Copy, Debug)]
pub struct Failure<'a> {
    /// The error, for operators; the first 8,000 characters are stored.
    pub error: &'a str,
    /// If set, the key is given up at once with this reason.
    pub reason: Option<Reason>,
    /// Number of failed runs after which the key is given up as [`Reason::AttemptsExhausted`]: 1 to 10,000.
    pub max_attempts: u32,
    /// Delay before the next run: up to 3,650 days.
    pub delay: Duration,
}

/// The result of reporting a failed run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailOutcome {
    /// The next claim after the delay runs again.
    Retry {
        /// Number of failed runs.
        attempts: u32,
    },
    /// The key is given up: no further run.
    GivenUp {
        /// Number of failed runs.
        attempts: u32,
        /// The reason code.
        reason: Reason,
    },
    /// This same lease has completed the key.
    Completed,
    /// The lease is lost: another run holds the key, or no run does.
    Lost,
}

/// The stored state of a key.
#[derive(Clone, Debug, PartialEq)]
pub struct KeySnapshot {
    /// In progress, completed or failed.
    pub status: KeyStatus,
    /// The owner of the current lease.
    pub owner: Option<String>,
    /// Number of the last lease.
    pub token: i64,
    /// Number of runs with a known end.
    pub attempts: u32,
    /// Number of crashed runs since the last report.
    pub crashes: u32,
    /// The reason why the key was given up.
    pub reason: Option<Reason>,
    /// The response of a completed key.
    pub response: Option<Value>,
}
