//! Errors of a run in a transaction.

use sqlx::PgConnection;

use oncely_lease::handler_error::HandlerError;
use oncely_postgres as pg;

/// Error in a transaction with a handler's writes.
#[derive(Debug)]
pub(super) enum RunError {
    /// Error of a statement of this crate.
    Own(sqlx::Error),
    Handler(HandlerError),
}

impl From<sqlx::Error> for RunError {
    fn from(error: sqlx::Error) -> Self {
        Self::Own(error)
    }
}

impl From<HandlerError> for RunError {
    fn from(error: HandlerError) -> Self {
        Self::Handler(error)
    }
}

/// Checks that the transaction is still that of `transaction_id`, and that no statement in it has failed. A COMMIT of a failed transaction,
/// or of one that the handler has ended, would report success.
pub(super) async fn check_transaction(
    connection: &mut PgConnection,
    transaction_id: &str,
) -> Result<(), RunError> {
    match pg::read_transaction_id(connection).await {
        Ok(current) if current == transaction_id => Ok(()),
        Ok(_) => Err(HandlerError::permanent("the handler has ended the transaction").into()),
        Err(error) if pg::is_outage(&error) => Err(error.into()),
        Err(_) => Err(HandlerError::transient(
            "a statement of the handler failed, and it went on as if nothing had happened",
        )
        .into()),
    }
}
