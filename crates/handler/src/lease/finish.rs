//! Successful end of a run under a lease.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;

use oncely_lease::handler_error::HandlerError;

pub(super) type FinishWrite =
    dyn for<'c> Fn(&'c mut PgConnection) -> BoxFuture<'c, Result<(), HandlerError>> + Send + Sync;

/// Results of a run under a lease: a response for duplicates, and writes of its own.
#[derive(Clone, Default)]
pub struct Finish {
    #[doc(hidden)]
    pub response: Option<Value>,
    pub(crate) write: Option<Arc<FinishWrite>>,
}

impl Finish {
    /// Creates the end of a run without a response.
    #[must_use]
    pub fn done() -> Self {
        Self::default()
    }

    /// Creates the end of a run with a response that duplicates get: 64 KiB of JSON at most.
    ///
    /// # Errors
    /// If the response can't be written as JSON.
    pub fn response(response: impl Serialize) -> Result<Self, HandlerError> {
        let response =
            serde_json::to_value(response).map_err(|error| HandlerError::permanent(error.to_string()))?;
        Ok(Self { response: Some(response), write: None })
    }

    /// Adds writes to the commit of the completion, after it. Called again if a COMMIT did not succeed, each time in a transaction of its
    /// own; never after one that did.
    ///
    /// ```
    /// # use oncely::handler::{Finish, HandlerError};
    /// let finish = Finish::done().with(|connection| {
    ///     Box::pin(async move {
    ///         sqlx::query("insert into payments (charge) values ('ch_1')").execute(connection).await?;
    ///         Ok(())
    ///     })
    /// });
    /// ```
    #[must_use]
    pub fn with(
        mut self,
        write: impl for<'c> Fn(&'c mut PgConnection) -> BoxFuture<'c, Result<(), HandlerError>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.write = Some(Arc::new(write));
        self
    }
}

impl fmt::Debug for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finish").field("writes", &self.write.is_some()).finish_non_exhaustive()
    }
}
