//! What keeps a worker from starting.

use crate::config::Problems;

/// Why a worker did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The configuration, or what the servers hold, is not fit.
    #[error(transparent)]
    Refused(#[from] Problems),
}
