//! What a Rust handler says when it fails.

use crate::fault::{Fault, FaultClass};
use crate::pg::{PgFault, classify_handler};

/// A handler's failure. `?` on an [`sqlx::Error`] classifies it by SQLSTATE; other errors are transient.
#[derive(Debug)]
pub enum HandlerError {
    /// May pass: tried again after a delay, as often as the consumer allows.
    Transient(String),
    /// This message can never succeed: dead-lettered as `handler_rejected`.
    Permanent(String),
    /// Perhaps not the message's fault: where all messages fail alike, consuming pauses until it works and no attempt is spent; where
    /// others succeed, it counts as this message's failure.
    Environment(String),
    /// PostgreSQL's own error, classified by its SQLSTATE.
    Database(sqlx::Error),
}

impl HandlerError {
    /// A failure that may pass.
    pub fn transient(message: impl Into<String>) -> Self {
        Self::Transient(message.into())
    }

    /// A message that can never succeed.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self::Permanent(message.into())
    }

    /// A failure that is not the message's.
    pub fn environment(message: impl Into<String>) -> Self {
        Self::Environment(message.into())
    }

    pub(crate) fn into_fault(self) -> PgFault {
        let fault = |class, message| PgFault::Fault(Fault::new(class, None, message));
        match self {
            Self::Transient(message) => fault(FaultClass::Transient, message),
            Self::Permanent(message) => fault(FaultClass::Rejected, message),
            Self::Environment(message) => fault(FaultClass::Environment, message),
            Self::Database(error) => classify_handler(error),
        }
    }
}

impl From<sqlx::Error> for HandlerError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<anyhow::Error> for HandlerError {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<sqlx::Error>() {
            Ok(error) => Self::Database(error),
            Err(error) => Self::Transient(format!("{error:#}")),
        }
    }
}
