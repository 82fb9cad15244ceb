//! Errors of a run in a transaction.

use sqlx::PgConnection;

use oncely_lease::handler_error::HandlerError;
use oncely_postgres as pg;

/// Error in a transaction with a handler's writes: of our own statements, or of the handler.
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

/// Checks that it is still our transaction, and that nothing in it has failed. A COMMIT of a failed transaction, or of one that the handler
/// has ended, would report success.
pub(super) async fn check_transaction(connection: &mut PgConnection, own: &str) -> Result<(), RunError> {
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
