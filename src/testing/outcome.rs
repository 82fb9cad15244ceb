//! What became of a delivery.

use std::time::Duration;

use serde_json::Value;

use crate::fault::Fault;
use crate::outcome;
use crate::reason::Reason;

/// What became of a delivery, and so what the broker would be told.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler ran, and what it wrote is committed. Acknowledged.
    Completed {
        /// Which run it was, from 1.
        attempt: u32,
        /// What is stored with the key.
        response: Option<Value>,
    },
    /// The handler said no, and that is the answer; what it wrote is rolled back. Acknowledged.
    Refused {
        /// Which run it was, from 1.
        attempt: u32,
        /// In the handler's words.
        reason: String,
    },
    /// It took effect before: the handler did not run. Acknowledged.
    Duplicate,
    /// The handler failed, and what it wrote is rolled back. A copy goes to a retry queue, then it is acknowledged.
    Retried {
        /// Which run it was, from 1.
        attempt: u32,
        /// When the copy comes back; one that comes earlier is [`Outcome::Postponed`].
        delay: Duration,
        /// PostgreSQL's error, where it was one.
        sqlstate: Option<String>,
        /// For people.
        detail: String,
    },
    /// It came before its key may run again: the handler did not run. A copy goes to a retry queue, then it is acknowledged.
    Postponed {
        /// When the copy comes back.
        delay: Duration,
    },
    /// It failed, perhaps by nobody's fault: no attempt is spent. It stays unacknowledged, and a worker tries it again. Another message that
    /// succeeds meanwhile makes it this one's failure.
    Waiting {
        /// PostgreSQL's error, where it was one.
        sqlstate: Option<String>,
        /// For people.
        detail: String,
    },
    /// It will not run again; what the handler wrote is rolled back. A copy goes to the dead-letter queue, then it is acknowledged.
    DeadLettered {
        /// Which run it was, from 1; 0 where the handler did not run.
        attempt: u32,
        /// Why.
        reason: Reason,
        /// PostgreSQL's error, where it was one.
        sqlstate: Option<String>,
        /// For people.
        detail: String,
    },
}

impl Outcome {
    /// `response`: what is stored with the key.
    pub(super) fn of(decided: outcome::Outcome, response: Option<Value>) -> Self {
        match decided {
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

    /// Its effect is committed: now, or it was before.
    #[must_use]
    pub fn took_effect(&self) -> bool {
        matches!(self, Self::Completed { .. } | Self::Duplicate)
    }

    /// The handler ran, and its effect is committed now.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        matches!(self, Self::Completed { .. })
    }

    /// It took effect before, and the handler did not run.
    #[must_use]
    pub fn is_duplicate(&self) -> bool {
        matches!(self, Self::Duplicate)
    }

    /// Why it was dead-lettered, if it was.
    #[must_use]
    pub fn dead_lettered(&self) -> Option<Reason> {
        match self {
            Self::DeadLettered { reason, .. } => Some(*reason),
            _ => None,
        }
    }
}
