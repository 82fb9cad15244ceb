//! What became of a letter that a person requeues or discards.

use crate::encryption::CipherError;

/// The outcome of a requeue or a discard for one letter.
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
    /// Somebody else has discarded it meanwhile: it was not published.
    GivenUp,
    /// Another requeue, or a sweep, has published it.
    ByAnother,
    /// It took effect meanwhile: nothing was published.
    TookEffect,
    /// It has changed since the plan: nothing was done to it.
    Changed,
    /// It could not be published, and stands as requeueing: why.
    Failed(String),
}

impl LetterOutcome {
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    pub(crate) fn is_from_queue(&self) -> bool {
        matches!(self, Self::FromQueue(_))
    }
}
