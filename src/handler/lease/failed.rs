//! What a run fails with, on its way out of a transaction.

use sqlx::PgConnection;

use crate::handler::HandlerError;
use crate::pg;

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

/// Is it still our transaction, and has nothing in it failed? A COMMIT of one that has failed, or that the handler has ended, would say
/// that all is well.
pub(super) async fn still(connection: &mut PgConnection, own: &str) -> Result<(), RunError> {
    match pg::transaction_id(connection).await {
        Ok(now) if now == own => Ok(()),
        Ok(_) => Err(HandlerError::permanent("the handler has ended the transaction").into()),
        Err(error) if pg::is_outage(&error) => Err(error.into()),
        Err(_) => Err(HandlerError::transient(
            "a statement of the handler failed, and it went on as if nothing had happened",
        )
        .into()),
    }
}
