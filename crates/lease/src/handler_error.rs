//! Errors of a Rust handler.

use std::any::Any;
use std::error::Error;

use oncely_core::fault::{Fault, FaultClass};
use oncely_postgres::{Outage, PgFault, classify_cause, classify_handler};

/// A handler's failure.
///
/// `?` accepts every error type, including your own. An [`sqlx::Error`] is classified by its SQLSTATE, at any place in the chain of causes;
/// every other error is transient. Use a constructor for another classification:
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
/// Like `anyhow::Error` it does not implement [`std::error::Error`] itself, so that `?` can convert all of those.
#[derive(Debug)]
#[non_exhaustive]
pub enum HandlerError {
    /// Temporary: tried again after a delay, up to the consumer's limit.
    Transient(String),
    /// This message can never succeed: dead-lettered as `handler_rejected`.
    Permanent(String),
    /// The handler refuses the message, which is final: its writes for this message are rolled back, its key is completed with the response
    /// `{"refused": reason}`, and the message is acknowledged. No dead letter.
    Refused(String),
    /// Perhaps not caused by the message: if all messages fail alike, consuming pauses until they succeed, and no attempt is used; if
    /// others succeed, it counts as this message's failure.
    Environment(String),
    /// Under a lease: an outside call has happened or may have, its result is unknown to the next run, and it must not be repeated:
    /// dead-lettered as `outcome_unknown`.
    OutcomeUnknown(String),
    /// PostgreSQL's own error, classified by its SQLSTATE.
    Database(sqlx::Error),
    /// Another error: classified by the SQLSTATE of an [`sqlx::Error`] among its causes, otherwise transient.
    Other(Box<dyn Error + Send + Sync>),
}

impl HandlerError {
    /// Creates a temporary failure.
    pub fn transient(message: impl Into<String>) -> Self {
        Self::Transient(message.into())
    }

    /// Creates the failure of a message that can never succeed.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self::Permanent(message.into())
    }

    /// Creates a refusal, which is the final answer: sold out, account closed. Nothing needs to be fixed, so it is neither retried nor
    /// dead-lettered.
    pub fn refused(reason: impl Into<String>) -> Self {
        Self::Refused(reason.into())
    }

    /// Creates a failure that is not caused by the message.
    pub fn environment(message: impl Into<String>) -> Self {
        Self::Environment(message.into())
    }

    /// Classifies the error: a fault with its class, or an outage of PostgreSQL.
    #[doc(hidden)]
    pub fn into_fault(self) -> PgFault {
        let fault = |class, message| PgFault::Fault(Fault::new(class, None, message));
        match self {
            Self::Transient(message) => fault(FaultClass::Transient, message),
            Self::Permanent(message) | Self::OutcomeUnknown(message) => fault(FaultClass::Rejected, message),
            Self::Refused(reason) => fault(FaultClass::Refused, reason),
            Self::Environment(message) => fault(FaultClass::Environment, message),
            Self::Database(error) => classify_handler(error),
            Self::Other(error) => classify_other(error.as_ref()),
        }
    }
}

/// Classifies by the first PostgreSQL error in the chain; otherwise transient. The text has all causes down to that error, without
/// repetition: some include their cause in their own text.
fn classify_other(error: &(dyn Error + 'static)) -> PgFault {
    let mut text = String::new();
    let mut cause = Some(error);
    while let Some(one) = cause {
        let database_error = classify_cause(one);
        let own = match &database_error {
            Some(Ok(fault)) => {
                // The server's text may quote a value of the message, and wrappers may repeat it.
                let mut cause = Some(one);
                while let Some(one) = cause {
                    text = text.replace(&one.to_string(), &fault.message);
                    cause = one.source();
                }
                fault.message.clone()
            }
            _ => one.to_string(),
        };
        if !text.contains(&own) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&own);
        }
        match database_error {
            Some(Ok(fault)) => return PgFault::Fault(Fault::new(fault.class, fault.code, text)),
            Some(Err(kind)) => {
                return PgFault::Outage(Outage(sqlx::Error::Io(std::io::Error::new(kind, text))));
            }
            None => cause = one.source(),
        }
    }
    PgFault::Fault(Fault::new(FaultClass::Transient, None, text))
}

/// Converts every error, also `anyhow::Error`, and texts.
impl<E> From<E> for HandlerError
where
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    fn from(error: E) -> Self {
        // Classified by their own types, which a box would hide.
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
            // Not reached: the value was set above.
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
        #[error("the books")]
        Books(#[source] sqlx::Error),
    }

    /// A failed cast, of which PostgreSQL quotes the input.
    #[derive(Debug, thiserror::Error)]
    #[error("invalid input syntax for type integer: \"S3CR3T\"")]
    struct FailedCast;

    impl sqlx::error::DatabaseError for FailedCast {
        fn message(&self) -> &str {
            "invalid input syntax for type integer: \"S3CR3T\""
        }

        fn code(&self) -> Option<std::borrow::Cow<'_, str>> {
            Some("22P02".into())
        }

        fn kind(&self) -> sqlx::error::ErrorKind {
            sqlx::error::ErrorKind::Other
        }

        fn as_error(&self) -> &(dyn Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn Error + Send + Sync + 'static> {
            self
        }
    }

    fn class(error: impl Into<HandlerError>) -> Option<FaultClass> {
        match error.into().into_fault() {
            PgFault::Fault(fault) => Some(fault.class),
            PgFault::Outage(_) => None,
        }
    }

    #[test]
    fn every_error_is_taken_and_those_of_the_database_keep_their_class() {
        let fail = || -> Result<(), HandlerError> {
            Err(Own::Closed)?;
            Ok(())
        };
        assert_eq!(class(fail().unwrap_err()), Some(FaultClass::Transient));
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
    fn a_value_that_postgresql_quotes_is_shown_by_no_wrapper_of_its_error() {
        let cast = || sqlx::Error::Database(Box::new(FailedCast));
        let anyhow = |error: Own| HandlerError::from(anyhow::Error::from(error).context("while selling"));
        for (error, begins) in [
            (HandlerError::from(Own::Wrapped(cast())), "the shop's books"),
            (HandlerError::from(Own::Books(cast())), "the books: "),
            (HandlerError::from(Own::Transparent(cast())), ""),
            (anyhow(Own::Wrapped(cast())), "while selling: the shop's books"),
            (anyhow(Own::Books(cast())), "while selling: the books: "),
            (HandlerError::from(cast()), ""),
        ] {
            let PgFault::Fault(fault) = error.into_fault() else { panic!("an outage") };
            assert_eq!((fault.class, fault.code.as_deref()), (FaultClass::Poison, Some("22P02")));
            assert!(
                fault.message.starts_with(begins) && !fault.message.contains("S3CR3T"),
                "{}",
                fault.message
            );
        }
    }

    #[test]
    fn causes_are_told_once() {
        let own = Own::from(sqlx::Error::RowNotFound);
        let PgFault::Fault(fault) = HandlerError::from(own).into_fault() else { panic!("an outage") };
        assert_eq!(fault.message.matches("no rows").count(), 1, "{}", fault.message);
    }
}
