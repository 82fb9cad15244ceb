//! How a run under a lease ends well.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;

use crate::handler::HandlerError;

pub(super) type Write =
    dyn for<'c> Fn(&'c mut PgConnection) -> BoxFuture<'c, Result<(), HandlerError>> + Send + Sync;

/// What a run under a lease leaves behind: a response for duplicates, and writes of its own.
#[derive(Clone, Default)]
pub struct Finish {
    pub(crate) response: Option<Value>,
    pub(crate) write: Option<Arc<Write>>,
}

impl Finish {
    /// Done, and nothing to say.
    #[must_use]
    pub fn done() -> Self {
        Self::default()
    }

    /// Done, with a response that duplicates get: 64 KiB of JSON at most.
    ///
    /// # Errors
    /// When it can't be JSON.
    pub fn response(response: impl Serialize) -> Result<Self, HandlerError> {
        let response =
            serde_json::to_value(response).map_err(|error| HandlerError::permanent(error.to_string()))?;
        Ok(Self { response: Some(response), write: None })
    }

    /// With writes in the commit of the completion, behind it. Called again where a COMMIT did not go through, each time in a transaction
    /// of its own; never where an earlier one did.
    ///
    /// ```
    /// # use oncely::{HandlerError, lease::Finish};
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
