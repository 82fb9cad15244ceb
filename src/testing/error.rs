//! Why there is no outcome.

use super::{Outcome, Step};
use crate::worker::WorkerError;

/// Why a delivery has no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HarnessError {
    /// The configuration, or what the database holds, is not fit.
    #[error(transparent)]
    Refused(#[from] WorkerError),
    /// PostgreSQL does not answer, or refuses statements of Oncely's: nothing is known to be decided, and the message would come again.
    #[error("PostgreSQL can't be asked: {0}")]
    Away(String),
    /// The worker has no consumer of this name.
    #[error("there is no consumer {0}")]
    NoConsumer(String),
    /// AMQP can't carry the message.
    #[error("no message of AMQP: {0}")]
    Unfit(String),
    /// What is stored with the key is JSON that Rust can't hold.
    #[error("the response can't be read: {0}")]
    Response(#[from] serde_json::Error),
    /// The delivery was to end at a step that it did not come to: the handler did not run, or it failed.
    #[error("the delivery did not come to the step {step:?}: {outcome:?}")]
    NotReached {
        /// The step.
        step: Step,
        /// What became of the delivery instead.
        outcome: Box<Outcome>,
    },
    /// The delivery was ended before COMMIT, and its key is completed all the same: the handler has said COMMIT in a transaction that is
    /// not its own. What is recorded after the handler (the trail, the response) is not there.
    #[error("the handler has committed the message's transaction before the step {step:?}")]
    CommittedByHandler {
        /// The step.
        step: Step,
    },
}
