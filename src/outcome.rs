//! What became of a delivery, and what the broker is told.

use std::time::Duration;

use crate::fault::Fault;
use crate::letter::Letter;
use crate::reason::{Reason, Rejection};

/// Who knew that a message was a duplicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicateSource {
    /// The mirror in Redis, on its own or confirmed by PostgreSQL.
    Mirror,
    /// PostgreSQL.
    Postgres,
    /// An earlier message of the same batch.
    Batch,
}

impl DuplicateSource {
    /// As in the audit table.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mirror => "mirror",
            Self::Postgres => "postgres",
            Self::Batch => "batch",
        }
    }
}

/// What became of a delivery.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The handler ran and its effect is committed.
    Completed {
        /// Which run it was, from 1.
        attempt: u32,
        /// What the handler returned.
        response: Option<String>,
    },
    /// The handler said no, and that is the answer: what it wrote is rolled back, and the key is completed with the reason.
    Refused {
        /// Which run it was, from 1.
        attempt: u32,
        /// In the handler's words.
        reason: String,
    },
    /// It took effect before; nothing ran.
    Duplicate(DuplicateSource),
    /// The handler failed; the message comes back after a delay.
    Retried {
        /// Which run it was, from 1.
        attempt: u32,
        /// When it comes back.
        delay: Duration,
        /// SQLSTATE, where PostgreSQL reported the failure.
        code: Option<String>,
        /// For people.
        detail: String,
    },
    /// It came before its key may run again; it comes back after a delay, and has spent nothing.
    Postponed {
        /// When it comes back; zero for at once, behind all others of its queue.
        delay: Duration,
    },
    /// It failed, and nobody answers for that yet ([`crate::blame`]): it waits, unacknowledged, and has spent nothing.
    Undecided {
        /// Its runs that count, this one left out.
        attempts: u32,
        /// What it met.
        fault: Fault,
    },
    /// It will not run (again).
    DeadLettered {
        /// Which run it was, from 1; 0 where it did not run.
        attempt: u32,
        /// Why.
        rejection: Rejection,
        /// SQLSTATE, where PostgreSQL reported the failure.
        code: Option<String>,
        /// Its row, once that is written.
        letter: Option<Letter>,
    },
}

impl Outcome {
    /// Which run of the handler led to it, from 1; `None` where nothing ran.
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

/// What the broker is told. Every one but the last ends in an acknowledgement of the original; a copy is confirmed before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Acknowledge.
    Ack,
    /// Publish a copy to the retry queue of this delay, or, where it is zero, to the end of its own queue; then acknowledge.
    Retry(Duration),
    /// Publish a copy to the dead-letter exchange, then acknowledge.
    DeadLetter(Rejection),
    /// Nothing.
    Keep,
}

impl Outcome {
    /// The only mapping from outcomes to what the broker is told.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Completed { .. } | Self::Refused { .. } | Self::Duplicate(_) => Disposition::Ack,
            Self::Retried { delay, .. } | Self::Postponed { delay } => Disposition::Retry(*delay),
            Self::Undecided { .. } => Disposition::Keep,
            Self::DeadLettered { rejection, .. } => Disposition::DeadLetter(rejection.clone()),
        }
    }

    /// As in the audit table.
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

    /// The key of its message is completed: a duplicate of it runs nothing, whoever knows it.
    #[must_use]
    pub fn completes(&self) -> bool {
        matches!(self, Self::Completed { .. } | Self::Refused { .. })
    }

    /// A message that is rejected without having run.
    #[must_use]
    pub fn rejected(rejection: Rejection) -> Self {
        Self::DeadLettered { attempt: 0, rejection, code: None, letter: None }
    }

    /// What becomes of a copy beside it in one batch, with the same payload: it waits as long, or is a duplicate. `None`: what is known
    /// of the key by then decides.
    #[must_use]
    pub fn of_copy(&self) -> Option<Self> {
        match self {
            Self::Retried { .. } | Self::Postponed { .. } | Self::Undecided { .. } => Some(self.clone()),
            Self::Completed { .. } | Self::Refused { .. } | Self::Duplicate(_) => {
                Some(Self::Duplicate(DuplicateSource::Batch))
            }
            Self::DeadLettered { .. } => None,
        }
    }

    /// The reason code, where there is one.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::DeadLettered { rejection, .. } => Some(rejection.reason),
            _ => None,
        }
    }
}
