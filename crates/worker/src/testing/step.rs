//! Steps at which a delivery can end.

/// A step of a delivery at which [`Harness::kill_at`](super::Harness::kill_at) ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KillPoint {
    /// The key is claimed, and the handler is not called yet.
    BeforeHandler,
    /// The handler has returned, and nothing of that is recorded.
    AfterHandler,
    /// Everything is written. Deferred constraints have not run.
    BeforeCommit,
    /// The transaction has committed, and its reply is lost.
    AfterCommit,
    /// Under a lease: the first step with an outside call is announced, and not called.
    BeforeCall,
    /// Under a lease: the first step has made its outside call, and its result is not stored.
    AfterCall,
}

impl KillPoint {
    /// Steps of a message's transaction, in order.
    pub const ALL: [Self; 4] =
        [Self::BeforeHandler, Self::AfterHandler, Self::BeforeCommit, Self::AfterCommit];

    /// Steps of a run under a lease with an outside call, in order.
    pub const LEASED: [Self; 6] = [
        Self::BeforeHandler,
        Self::BeforeCall,
        Self::AfterCall,
        Self::AfterHandler,
        Self::BeforeCommit,
        Self::AfterCommit,
    ];

    /// Returns the step's name in [`oncely_failpoint`].
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
