//! The outcome of a requeue or a discard for one letter.

use oncely_core::encryption::CipherError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LetterOutcome {
    /// It is not decided yet, or is decided and not published yet.
    Waits,
    /// It is in its queue.
    Published,
    /// Only the dead-letter queue has the message, or its row has it in a form that this process can't read, with the reason: the sweep
    /// publishes it from there.
    FromQueue(Option<CipherError>),
    /// It was discarded as requested.
    Discarded,
    /// Another operator has discarded it in the meantime: it was not published.
    GivenUp,
    /// Another requeue or sweep has published it.
    ByAnother,
    /// It took effect in the meantime: it was not published.
    TookEffect,
    /// It has changed since the plan: it was not touched.
    Changed,
    /// It could not be published, for this reason, and has the state requeueing.
    Failed(String),
}

impl LetterOutcome {
    /// Returns whether the letter could not be published.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    /// Returns whether the sweep publishes the letter from its dead-letter queue.
    pub fn is_from_queue(&self) -> bool {
        matches!(self, Self::FromQueue(_))
    }
}
