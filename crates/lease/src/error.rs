//! Errors of lease stores.

/// The reason why a store did not perform a call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another run holds the key, or this one has ended: nothing was written, and this run can change nothing any more.
    #[error("the lease of the key is lost")]
    Lost,
    /// No answer: it is unknown whether the call was performed. Repeat it.
    #[error("the store can't be asked: {0:#}")]
    Unavailable(anyhow::Error),
    /// Refused for good: an argument out of bounds, or a step that never began. Nothing was written.
    #[error("{0}")]
    Refused(String),
    /// Not performed, for a reason that may not apply to the next run. Nothing was written.
    #[error("{0}")]
    Failed(String),
    /// The stored record is invalid, so no run may begin by it. An operator has to examine it.
    #[error("what is stored of the key is damaged: {0}")]
    Damaged(String),
}

impl StoreError {
    /// Returns [`StoreError::Unavailable`] with its cause.
    pub fn unavailable(error: impl Into<anyhow::Error>) -> Self {
        Self::Unavailable(error.into())
    }
}
