//! Errors that keep a worker from starting.

use oncely_config::Problems;

/// Reason why a worker did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The configuration, or the state of the servers, is unfit.
    #[error(transparent)]
    Refused(#[from] Problems),
}
