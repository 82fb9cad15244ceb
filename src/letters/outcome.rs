//! The outcome of a requeue or a discard for one letter.

use crate::encryption::CipherError;

/// Tells the outcome of a requeue or a discard for one letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LetterOutcome {
    /// It was not decided yet, or was decided and not published yet.
    Waits,
    /// It is in its queue.
    Published,
    /// Only the dead-letter queue has the message, or its row has it in a form that this process can't read, and why: the sweep publishes it
    /// from there.
    FromQueue(Option<CipherError>),
    /// It was given up, as asked.
    Discarded,
    /// Another operator has discarded it meanwhile: it was not published.
    GivenUp,
    /// Another requeue, or a sweep, has published it.
    ByAnother,
    /// It took effect meanwhile: nothing was published.
    TookEffect,
    /// It has changed since the plan: nothing was done to it.
    Changed,
    /// It could not be published, and stands as requeueing, for this reason.
    Failed(String),
}

impl LetterOutcome {
    /// Tells whether it could not be published.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    /// Tells whether the sweep publishes it.
    pub(crate) fn is_from_queue(&self) -> bool {
        matches!(self, Self::FromQueue(_))
    }
}
