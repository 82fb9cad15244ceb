//! Where a delivery can end.

/// A step of a message's transaction at which [`Harness::kill_at`](super::Harness::kill_at) ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// The key is claimed, and the handler not called.
    BeforeHandler,
    /// The handler has returned, and nothing of that is recorded.
    AfterHandler,
    /// All is written. What the handler deferred has not run.
    BeforeCommit,
    /// The transaction has committed, and nobody has seen the reply.
    AfterCommit,
}

impl Step {
    /// All of them, in their order.
    pub const ALL: [Self; 4] =
        [Self::BeforeHandler, Self::AfterHandler, Self::BeforeCommit, Self::AfterCommit];

    /// Its name in [`crate::failpoint`].
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::BeforeHandler => "worker.handle.before",
            Self::AfterHandler => "worker.handle.after",
            Self::BeforeCommit => "worker.commit.before",
            Self::AfterCommit => "worker.commit.after",
        }
    }
}
