//! Outcome of a delivery.

use std::time::Duration;

use serde_json::Value;

use oncely_core::fault::Fault;
use oncely_core::outcome;
use oncely_core::reason::Reason;

/// Outcome of a delivery, which determines the broker's answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TestOutcome {
    /// The handler ran, and its writes are committed. Acknowledged.
    Completed {
        /// Number of the run, from 1.
        attempt: u32,
        /// Response stored with the key.
        response: Option<Value>,
    },
    /// The handler refused the message, which is final; its writes are rolled back. Acknowledged.
    Refused {
        /// Number of the run, from 1.
        attempt: u32,
        /// The handler's text.
        reason: String,
    },
    /// It took effect before: the handler did not run. Acknowledged.
    Duplicate,
    /// The handler failed, and its writes are rolled back. A copy is sent to a retry queue, then the message is acknowledged.
    Retried {
        /// Number of the run, from 1.
        attempt: u32,
        /// When the copy comes back; an earlier one is [`TestOutcome::Postponed`].
        delay: Duration,
        /// SQLSTATE of PostgreSQL's error; `None` for any other error.
        sqlstate: Option<String>,
        /// Description for users.
        detail: String,
    },
    /// It came before its key may run again: the handler did not run. A copy is sent to a retry queue, then the message is acknowledged.
    Postponed {
        /// When the copy comes back.
        delay: Duration,
    },
    /// It failed, perhaps not by its own fault: no attempt is counted. It stays unacknowledged, and a worker tries it again. If another
    /// message succeeds meanwhile, the failure is attributed to this message.
    Waiting {
        /// SQLSTATE of PostgreSQL's error; `None` for any other error.
        sqlstate: Option<String>,
        /// Description for users.
        detail: String,
    },
    /// It will not run again; the handler's writes are rolled back. A copy is sent to the dead-letter queue, then the message is
    /// acknowledged.
    DeadLettered {
        /// Number of the run, from 1; 0 if the handler did not run.
        attempt: u32,
        /// Reason code.
        reason: Reason,
        /// SQLSTATE of PostgreSQL's error; `None` for any other error.
        sqlstate: Option<String>,
        /// Description for users.
        detail: String,
    },
}

impl TestOutcome {
    /// Converts the worker's outcome. `response`: the response stored with the key.
    pub(super) fn from_outcome(outcome: outcome::Outcome, response: Option<Value>) -> Self {
        match outcome {
            outcome::Outcome::Completed { attempt, .. } => Self::Completed { attempt, response },
            outcome::Outcome::Refused { attempt, reason } => Self::Refused { attempt, reason },
            outcome::Outcome::Duplicate(_) => Self::Duplicate,
            outcome::Outcome::Retried { attempt, delay, code, detail } => {
                Self::Retried { attempt, delay, sqlstate: code, detail }
            }
            outcome::Outcome::Postponed { delay } => Self::Postponed { delay },
            outcome::Outcome::Undecided { fault: Fault { code, message, .. }, .. } => {
                Self::Waiting { sqlstate: code, detail: message }
            }
            outcome::Outcome::DeadLettered { attempt, rejection, code, .. } => Self::DeadLettered {
                attempt,
                reason: rejection.reason,
                sqlstate: code,
                detail: rejection.detail,
            },
        }
    }

    /// Returns whether the message's effect is committed, by this or an earlier delivery.
    #[must_use]
    pub fn took_effect(&self) -> bool {
        matches!(self, Self::Completed { .. } | Self::Duplicate)
    }

    /// Returns whether the handler ran, and its effect is committed by this delivery.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        matches!(self, Self::Completed { .. })
    }

    /// Returns whether the message took effect before, so that the handler did not run.
    #[must_use]
    pub fn is_duplicate(&self) -> bool {
        matches!(self, Self::Duplicate)
    }

    /// Returns the reason for which the message was dead-lettered; `None` for any other outcome.
    #[must_use]
    pub fn dead_lettered(&self) -> Option<Reason> {
        match self {
            Self::DeadLettered { reason, .. } => Some(*reason),
            _ => None,
        }
    }
}
