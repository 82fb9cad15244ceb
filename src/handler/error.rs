//! What a Rust handler says when it fails.

use std::any::Any;
use std::error::Error;

use crate::fault::{Fault, FaultClass};
use crate::pg::{Outage, PgFault, classify_handler, fault_within};

/// A handler's failure.
///
/// `?` takes every error type, your own included. An [`sqlx::Error`] is classified by its SQLSTATE, wherever in the chain of causes it
/// stands; every other error is transient. What is to be classified otherwise is said by hand:
///
/// ```
/// # use oncely::handler::HandlerError;
/// # #[derive(Debug, thiserror::Error)]
/// # enum ShopError {
/// #     #[error("sold out")]
/// #     SoldOut,
/// #     #[error("the warehouse does not answer")]
/// #     Away,
/// # }
/// # fn reserve() -> Result<(), ShopError> { Ok(()) }
/// # fn handler() -> Result<(), HandlerError> {
/// reserve().map_err(|error| match error {
///     ShopError::SoldOut => HandlerError::refused("sold out"),
///     other => other.into(),
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// Like `anyhow::Error` it is no [`std::error::Error`] itself: only so can `?` take all of those.
#[derive(Debug)]
#[non_exhaustive]
pub enum HandlerError {
    /// May pass: tried again after a delay, as often as the consumer allows.
    Transient(String),
    /// This message can never succeed: dead-lettered as `handler_rejected`.
    Permanent(String),
    /// No, and that is the answer: what the handler wrote for this message is rolled back, its key is completed with the response
    /// `{"refused": reason}`, and the message is acknowledged. No dead letter.
    Refused(String),
    /// Perhaps not the message's fault: where all messages fail alike, consuming pauses until it works and no attempt is spent; where
    /// others succeed, it counts as this message's failure.
    Environment(String),
    /// Under a lease: what was called outside has happened or may have, its result is not known to the next run, and it must not be repeated:
    /// dead-lettered as `outcome_unknown`.
    OutcomeUnknown(String),
    /// PostgreSQL's own error, classified by its SQLSTATE.
    Database(sqlx::Error),
    /// Another error: by the SQLSTATE of an [`sqlx::Error`] among its causes, else transient.
    Other(Box<dyn Error + Send + Sync>),
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

    /// No, and that is the answer: sold out, account closed. Nothing is to be mended, so nothing is tried again or dead-lettered.
    pub fn refused(reason: impl Into<String>) -> Self {
        Self::Refused(reason.into())
    }

    /// A failure that is not the message's.
    pub fn environment(message: impl Into<String>) -> Self {
        Self::Environment(message.into())
    }

    pub(crate) fn into_fault(self) -> PgFault {
        let fault = |class, message| PgFault::Fault(Fault::new(class, None, message));
        match self {
            Self::Transient(message) => fault(FaultClass::Transient, message),
            Self::Permanent(message) | Self::OutcomeUnknown(message) => fault(FaultClass::Rejected, message),
            Self::Refused(reason) => fault(FaultClass::Refused, reason),
            Self::Environment(message) => fault(FaultClass::Environment, message),
            Self::Database(error) => classify_handler(error),
            Self::Other(error) => of_other(error.as_ref()),
        }
    }
}

/// By the first error of PostgreSQL in the chain; else transient, with all causes.
fn of_other(error: &(dyn Error + 'static)) -> PgFault {
    let text = told(error);
    let mut cause = Some(error);
    while let Some(one) = cause {
        match fault_within(one) {
            Some(Ok(fault)) => return PgFault::Fault(Fault::new(fault.class, fault.code, text)),
            Some(Err(kind)) => {
                return PgFault::Outage(Outage(sqlx::Error::Io(std::io::Error::new(kind, text))));
            }
            None => cause = one.source(),
        }
    }
    PgFault::Fault(Fault::new(FaultClass::Transient, None, text))
}

/// An error with its causes, each said once: some repeat their cause in their own text.
fn told(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        let more = one.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = one.source();
    }
    text
}

/// Every error, `anyhow::Error` too, and a text.
impl<E> From<E> for HandlerError
where
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    fn from(error: E) -> Self {
        // Their own types are what they are classified by, and a box hides them.
        let mut error = Some(error);
        let any: &mut dyn Any = &mut error;
        if let Some(database) = any.downcast_mut::<Option<sqlx::Error>>().and_then(Option::take) {
            return Self::Database(database);
        }
        if let Some(anyhow) = any.downcast_mut::<Option<anyhow::Error>>().and_then(Option::take) {
            return match anyhow.downcast::<sqlx::Error>() {
                Ok(database) => Self::Database(database),
                Err(other) => Self::Other(other.into()),
            };
        }
        match error {
            Some(error) => Self::Other(error.into()),
            // Never: what is taken above is returned.
            None => Self::Transient(String::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Own {
        #[error("the shop is closed")]
        Closed,
        #[error("the shop's books: {0}")]
        Wrapped(#[from] sqlx::Error),
        #[error(transparent)]
        Transparent(sqlx::Error),
    }

    fn class(error: impl Into<HandlerError>) -> Option<FaultClass> {
        match error.into().into_fault() {
            PgFault::Fault(fault) => Some(fault.class),
            PgFault::Outage(_) => None,
        }
    }

    #[test]
    fn every_error_is_taken_and_those_of_the_database_keep_their_class() {
        let asked = || -> Result<(), HandlerError> {
            Err(Own::Closed)?;
            Ok(())
        };
        assert_eq!(class(asked().unwrap_err()), Some(FaultClass::Transient));
        assert_eq!(class("a text"), Some(FaultClass::Transient));
        assert_eq!(class(anyhow::anyhow!("any")), Some(FaultClass::Transient));
        assert_eq!(class(sqlx::Error::RowNotFound), Some(FaultClass::Transient));
        let away = || sqlx::Error::PoolTimedOut;
        assert_eq!(class(away()), None, "an outage");
        assert_eq!(class(Own::from(away())), None);
        assert_eq!(class(Own::Transparent(sqlx::Error::WorkerCrashed)), Some(FaultClass::Transient));
        assert_eq!(class(anyhow::Error::from(away()).context("while selling")), None);
        assert_eq!(class(anyhow::Error::from(Own::from(away())).context("while selling")), None);
    }

    #[test]
    fn causes_are_told_once() {
        let own = Own::from(sqlx::Error::RowNotFound);
        let PgFault::Fault(fault) = HandlerError::from(own).into_fault() else { panic!("an outage") };
        assert_eq!(fault.message.matches("no rows").count(), 1, "{}", fault.message);
    }
}
