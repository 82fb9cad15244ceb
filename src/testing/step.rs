//! Where a delivery can end.

/// A step of a delivery at which [`Harness::kill_at`](super::Harness::kill_at) ends it.
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
    /// Under a lease: the first step that calls something outside is announced, and not called.
    BeforeCall,
    /// Under a lease: the first step has called something outside, and its result is not stored.
    AfterCall,
}

impl Step {
    /// Those of a message's transaction, in their order.
    pub const ALL: [Self; 4] =
        [Self::BeforeHandler, Self::AfterHandler, Self::BeforeCommit, Self::AfterCommit];

    /// Those of a run under a lease whose handler calls something outside, in their order.
    pub const LEASED: [Self; 6] = [
        Self::BeforeHandler,
        Self::BeforeCall,
        Self::AfterCall,
        Self::AfterHandler,
        Self::BeforeCommit,
        Self::AfterCommit,
    ];

    /// Its name in [`crate::failpoint`].
    pub(super) fn name(self, is_leased: bool) -> &'static str {
        match (self, is_leased) {
            (Self::BeforeHandler, false) => "worker.handle.before",
            (Self::BeforeHandler, true) => "lease.claim.after",
            (Self::BeforeCall, _) => "lease.call.before",
            (Self::AfterCall, _) => "lease.call.after",
            (Self::AfterHandler, false) => "worker.handle.after",
            (Self::AfterHandler, true) => "lease.complete.before",
            (Self::BeforeCommit, false) => "worker.commit.before",
            (Self::BeforeCommit, true) => "lease.commit.before",
            (Self::AfterCommit, false) => "worker.commit.after",
            (Self::AfterCommit, true) => "lease.commit.after",
        }
    }
}
