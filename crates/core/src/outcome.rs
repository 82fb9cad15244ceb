//! Outcome of a delivery, and its settlement with the broker.

use std::time::Duration;

use crate::fault::Fault;
use crate::letter::Letter;
use crate::reason::{Reason, Rejection};

crate::words! {
    array;
    /// Source that detected a duplicate.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum DuplicateSource {
        /// The mirror in Redis, on its own or confirmed by PostgreSQL.
        Mirror = "mirror",
        /// PostgreSQL.
        Postgres = "postgres",
        /// An earlier message of the same batch.
        Batch = "batch",
    }
}

/// Outcome of a delivery.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The handler ran and its effect is committed.
    Completed {
        /// Number of the run, from 1.
        attempt: u32,
        /// The handler's response.
        response: Option<String>,
    },
    /// The handler refused the message, which is final: its writes are rolled back, and the key is completed with the reason.
    Refused {
        /// Number of the run, from 1.
        attempt: u32,
        /// The handler's text.
        reason: String,
    },
    /// It took effect before; no handler ran.
    Duplicate(DuplicateSource),
    /// The handler failed; the message comes back after a delay.
    Retried {
        /// Number of the run, from 1.
        attempt: u32,
        /// Delay until it comes back.
        delay: Duration,
        /// SQLSTATE, if PostgreSQL reported the failure.
        code: Option<String>,
        /// Description for users.
        detail: String,
    },
    /// It came before its key may run again; it comes back after a delay, and no attempt is counted.
    Postponed {
        /// Delay until it comes back; zero for at once, behind all others of its queue.
        delay: Duration,
    },
    /// It failed, and the failure is not attributed yet ([`crate::blame`]): it waits, unacknowledged, and no attempt is counted.
    Undecided {
        /// Number of its earlier counted runs.
        attempts: u32,
        /// The failure.
        fault: Fault,
    },
    /// It will not run (again).
    DeadLettered {
        /// Number of the run, from 1; 0 if it did not run.
        attempt: u32,
        /// Reason.
        rejection: Rejection,
        /// SQLSTATE, if PostgreSQL reported the failure.
        code: Option<String>,
        /// Row of the dead letter, once it is written.
        letter: Option<Letter>,
    },
}

impl Outcome {
    /// Returns the number of the handler's run, from 1; `None` if no handler ran.
    #[must_use]
    pub fn attempt(&self) -> Option<u32> {
        match self {
            Self::Completed { attempt, .. }
            | Self::Refused { attempt, .. }
            | Self::Retried { attempt, .. } => Some(*attempt),
            Self::DeadLettered { attempt, .. } => Some(*attempt).filter(|attempt| *attempt > 0),
            Self::Duplicate(_) | Self::Postponed { .. } | Self::Undecided { .. } => None,
        }
    }
}

/// Settlement with the broker. All but the last end in an acknowledgement of the original; a copy is confirmed before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Acknowledge.
    Ack,
    /// Publish a copy to the retry queue of this delay, or, if it is zero, to the end of its own queue; then acknowledge.
    Retry(Duration),
    /// Publish a copy to the dead-letter exchange, then acknowledge.
    DeadLetter(Rejection),
    /// Send nothing.
    Keep,
}

impl Outcome {
    /// Returns the settlement of the outcome.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Completed { .. } | Self::Refused { .. } | Self::Duplicate(_) => Disposition::Ack,
            Self::Retried { delay, .. } | Self::Postponed { delay } => Disposition::Retry(*delay),
            Self::Undecided { .. } => Disposition::Keep,
            Self::DeadLettered { rejection, .. } => Disposition::DeadLetter(rejection.clone()),
        }
    }

    /// Returns the outcome's value in the audit table.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Completed { .. } => "completed",
            Self::Refused { .. } => "refused",
            Self::Duplicate(_) => "duplicate",
            Self::Retried { .. } => "retried",
            Self::Postponed { .. } => "postponed",
            Self::Undecided { .. } => "undecided",
            Self::DeadLettered { .. } => "dead_lettered",
        }
    }

    /// Returns whether the message's key is completed, so that a duplicate runs no handler.
    #[must_use]
    pub fn has_completed_key(&self) -> bool {
        matches!(self, Self::Completed { .. } | Self::Refused { .. })
    }

    /// Creates the outcome of a message that is rejected without a run.
    #[must_use]
    pub fn from_rejection(rejection: Rejection) -> Self {
        Self::DeadLettered { attempt: 0, rejection, code: None, letter: None }
    }

    /// Returns the outcome of a copy in the same batch, with the same payload: it waits as long, or is a duplicate. `None` if the key's
    /// later state decides.
    #[must_use]
    pub fn outcome_for_copy(&self) -> Option<Self> {
        match self {
            Self::Retried { .. } | Self::Postponed { .. } | Self::Undecided { .. } => Some(self.clone()),
            Self::Completed { .. } | Self::Refused { .. } | Self::Duplicate(_) => {
                Some(Self::Duplicate(DuplicateSource::Batch))
            }
            Self::DeadLettered { .. } => None,
        }
    }

    /// Returns the reason code; `None` unless the message was dead-lettered.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::DeadLettered { rejection, .. } => Some(rejection.reason),
            _ => None,
        }
    }
}
