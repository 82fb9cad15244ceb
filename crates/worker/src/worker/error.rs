//! Errors that keep a worker from starting.

use tokio::task::JoinError;

use oncely_config::Problems;

/// Reason why a worker did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The configuration, or the state of the servers, is unfit.
    #[error(transparent)]
    Refused(#[from] Problems),
}

/// Panics if a task has panicked: its messages stay unacknowledged as long as their channel lives, so the worker stops.
pub(super) fn propagate_panic(result: Result<(), JoinError>) {
    if let Err(error) = result
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}
