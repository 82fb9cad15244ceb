//! What a run fails with, on its way out of a transaction.

use crate::handler::HandlerError;

/// Of a transaction that holds somebody's writes: ours, or theirs.
#[derive(Debug)]
pub(super) enum RunError {
    Ours(sqlx::Error),
    Handler(HandlerError),
}

impl From<sqlx::Error> for RunError {
    fn from(error: sqlx::Error) -> Self {
        Self::Ours(error)
    }
}

impl From<HandlerError> for RunError {
    fn from(error: HandlerError) -> Self {
        Self::Handler(error)
    }
}

/// A call outside failed: whatever its error is, it is not PostgreSQL's answer to us.
pub(super) fn in_handler(error: anyhow::Error) -> HandlerError {
    HandlerError::transient(format!("{error:#}"))
}
