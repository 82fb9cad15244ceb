//! Handlers written in Rust.

use std::future::Future;

use futures::future::BoxFuture;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{HandlerError, HandlerResult, Incoming};
use crate::event::Event;
use crate::pg;

/// What a handler may use. Everything written through [`Context::connection`] commits with the key, or not at all.
#[derive(Debug)]
pub struct Context<'c> {
    connection: &'c mut PgConnection,
    /// The message that is handled, where it is one.
    incoming: Option<Incoming<'c>>,
}

impl<'c> Context<'c> {
    pub(crate) fn new(connection: &'c mut PgConnection, incoming: Option<Incoming<'c>>) -> Self {
        Self { connection, incoming }
    }

    /// The connection inside the open transaction. A handler must not end that transaction by a COMMIT or ROLLBACK of its own, and
    /// must not drop a nested `begin()` half-way (a timeout around it), nor go on after one that failed: sqlx then takes back all of
    /// the transaction. Other savepoints are its own affair. An ended transaction is noticed, and the connection is closed.
    pub fn connection(&mut self) -> &mut PgConnection {
        self.connection
    }

    /// Emits an event: the relay publishes it once this message's transaction has committed, and never otherwise. It carries
    /// on the message's tenant and its W3C trace context, unless it has its own. Returns its id.
    ///
    /// # Errors
    /// [`HandlerError::Database`] when it is too large or can't be sent (the message is dead-lettered then), or when PostgreSQL
    /// fails; [`HandlerError::Environment`] in a [`BatchHandler`], which must say which message causes it:
    /// [`Context::emit_for`].
    pub async fn emit(&mut self, event: &Event) -> Result<Uuid, HandlerError> {
        match self.incoming {
            Some(incoming) => self.emit_for(&incoming, event).await,
            None => Err(HandlerError::environment(
                "a batch handler must say which message causes an event: emit_for",
            )),
        }
    }

    /// Emits an event that one message of a batch causes; else like [`Context::emit`].
    ///
    /// # Errors
    /// Like [`Context::emit`].
    pub async fn emit_for(&mut self, message: &Incoming<'_>, event: &Event) -> Result<Uuid, HandlerError> {
        let cause = (message.identity.tenant.as_str(), message.message);
        Ok(pg::emit_for(self.connection, event, Some(cause)).await?)
    }
}

/// A handler that gets one message at a time.
///
/// It may be called again for a message whose effect was rolled back (a neighbour failed, the worker died before COMMIT);
/// its writes through the context take effect once. It is never called for a message that took effect. The future is
/// never dropped half-way, except with its connection.
pub trait Handler: Send + Sync + 'static {
    /// Does the work of one message.
    ///
    /// # Errors
    /// What the failure means for another try; see [`super::HandlerError`].
    fn handle(
        &self,
        context: &mut Context<'_>,
        message: &Incoming<'_>,
    ) -> impl Future<Output = HandlerResult> + Send;
}

/// A handler that gets a batch at a time: one round trip for many messages.
pub trait BatchHandler: Send + Sync + 'static {
    /// Does the work of a batch; returns exactly one response per message, in their order. When it fails, the batch is
    /// rolled back and each message comes again alone.
    ///
    /// # Errors
    /// What the failure means for another try; see [`super::HandlerError`].
    fn handle_batch(
        &self,
        context: &mut Context<'_>,
        messages: &[Incoming<'_>],
    ) -> impl Future<Output = Result<Vec<Option<serde_json::Value>>, super::HandlerError>> + Send;
}

/// [`Handler`], as it can be stored.
pub(crate) trait ErasedHandler: Send + Sync {
    fn handle<'a>(
        &'a self,
        context: &'a mut Context<'_>,
        message: &'a Incoming<'_>,
    ) -> BoxFuture<'a, HandlerResult>;
}

impl<H: Handler> ErasedHandler for H {
    fn handle<'a>(
        &'a self,
        context: &'a mut Context<'_>,
        message: &'a Incoming<'_>,
    ) -> BoxFuture<'a, HandlerResult> {
        Box::pin(Handler::handle(self, context, message))
    }
}

/// [`BatchHandler`], as it can be stored.
pub(crate) trait ErasedBatchHandler: Send + Sync {
    fn handle_batch<'a>(
        &'a self,
        context: &'a mut Context<'_>,
        messages: &'a [Incoming<'_>],
    ) -> BoxFuture<'a, Result<Vec<Option<serde_json::Value>>, super::HandlerError>>;
}

impl<H: BatchHandler> ErasedBatchHandler for H {
    fn handle_batch<'a>(
        &'a self,
        context: &'a mut Context<'_>,
        messages: &'a [Incoming<'_>],
    ) -> BoxFuture<'a, Result<Vec<Option<serde_json::Value>>, super::HandlerError>> {
        Box::pin(BatchHandler::handle_batch(self, context, messages))
    }
}

struct HandlerFn<F>(F);

impl<F> Handler for HandlerFn<F>
where
    F: for<'a> Fn(&'a mut Context<'_>, &'a Incoming<'_>) -> BoxFuture<'a, HandlerResult>
        + Send
        + Sync
        + 'static,
{
    async fn handle(&self, context: &mut Context<'_>, message: &Incoming<'_>) -> HandlerResult {
        (self.0)(context, message).await
    }
}

/// A handler from a closure that returns a boxed future: `handler_fn(|context, message| Box::pin(async move { … }))`.
pub fn handler_fn<F>(handle: F) -> impl Handler
where
    F: for<'a> Fn(&'a mut Context<'_>, &'a Incoming<'_>) -> BoxFuture<'a, HandlerResult>
        + Send
        + Sync
        + 'static,
{
    HandlerFn(handle)
}
