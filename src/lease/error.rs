//! Why a store did not do what it was asked.

/// Why a store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another run has the key, or this one has ended: nothing was written, and nothing of this run counts any more.
    #[error("the lease of the key is lost")]
    Lost,
    /// No answer: whether it was done is not known. Say it again.
    #[error("the store can't be asked: {0:#}")]
    Unavailable(anyhow::Error),
    /// It can't be done, now or later: an argument out of its bounds, a step that never began. Nothing was written.
    #[error("{0}")]
    Refused(String),
    /// What is stored of the key makes no sense, so nobody may run on its account. A person must look.
    #[error("what is stored of the key is damaged: {0}")]
    Damaged(String),
}

impl StoreError {
    /// No answer, and why.
    pub fn unavailable(error: impl Into<anyhow::Error>) -> Self {
        Self::Unavailable(error.into())
    }
}
