//! Errors of the harness.

use super::{KillPoint, TestOutcome};
use crate::worker::WorkerError;

/// If a delivery has no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HarnessError {
    /// The configuration or the database is not fit.
    #[error(transparent)]
    Refused(#[from] WorkerError),
    /// PostgreSQL does not answer, or refuses Oncely's statements: nothing is known to be decided, and the message would come again.
    #[error("PostgreSQL can't be asked: {0}")]
    Away(String),
    /// The worker has no consumer of this name.
    #[error("there is no consumer {0}")]
    NoConsumer(String),
    /// AMQP can't carry the message.
    #[error("no message of AMQP: {0}")]
    Unfit(String),
    /// The response stored with the key is JSON that Rust can't represent.
    #[error("the response can't be read: {0}")]
    Response(#[from] serde_json::Error),
    /// The delivery did not reach the step at which it was to end: the handler did not run, or it failed.
    #[error("the delivery did not come to the step {step:?}: {outcome:?}")]
    NotReached {
        /// The step.
        step: KillPoint,
        /// Outcome of the delivery instead.
        outcome: Box<TestOutcome>,
    },
    /// The delivery was ended before COMMIT, but its key is completed: the handler has run COMMIT in a transaction that is not its own.
    /// Records written after the handler (the trail, the response) are missing.
    #[error("the handler has committed the message's transaction before the step {step:?}")]
    CommittedByHandler {
        /// The step.
        step: KillPoint,
    },
}
