//! Handlers written in Rust.

use std::future::Future;

use futures::future::BoxFuture;
use serde_json::Value;

use super::{Context, HandlerError, IntoResponse, IntoResponses, Message};

/// A handler that gets one message at a time.
///
/// It may be called again for a message after its effect was rolled back (another message failed, the worker crashed before COMMIT); its
/// writes through the context take effect once. It is never called for a message that took effect. The future is never dropped half-way,
/// except with its connection.
///
/// ```
/// use oncely::{Context, Handler, HandlerError, Message};
///
/// struct Payments;
///
/// impl Handler for Payments {
///     type Response = ();
///
///     async fn handle(&self, mut context: Context<'_>, message: Message<'_>) -> Result<(), HandlerError> {
///         sqlx::query("insert into payments (tenant, order_id) values ($1, $2)")
///             .bind(message.tenant())
///             .bind(message.key())
///             .execute(context.connection())
///             .await?;
///         Ok(())
///     }
/// }
/// ```
pub trait Handler: Send + Sync + 'static {
    /// Response stored with the key: `()`, [`Json`](super::Json), [`Value`], or an `Option` of these.
    type Response: IntoResponse;

    /// Does the work of one message.
    ///
    /// # Errors
    /// If the work fails: the error decides about another try; see [`HandlerError`].
    fn handle(
        &self,
        context: Context<'_>,
        message: Message<'_>,
    ) -> impl Future<Output = Result<Self::Response, HandlerError>> + Send;
}

/// A handler that gets a batch at a time: one round trip for many messages.
pub trait BatchHandler: Send + Sync + 'static {
    /// `()` for no responses, or a `Vec` with exactly one response per message, in their order.
    type Responses: IntoResponses;

    /// Does the work of a batch. When it fails, the batch is rolled back and each message comes again alone.
    ///
    /// # Errors
    /// If the work fails: the error decides about another try; see [`HandlerError`].
    fn handle_batch(
        &self,
        context: Context<'_>,
        messages: &[Message<'_>],
    ) -> impl Future<Output = Result<Self::Responses, HandlerError>> + Send;
}

/// Object-safe form of [`Handler`].
pub trait ErasedHandler: Send + Sync {
    /// Calls [`Handler::handle`], and converts its response to JSON; `None` without a response.
    #[doc(hidden)]
    fn handle<'a>(
        &'a self,
        context: Context<'a>,
        message: Message<'a>,
    ) -> BoxFuture<'a, Result<Option<Value>, HandlerError>>;
}

impl<H: Handler> ErasedHandler for H {
    fn handle<'a>(
        &'a self,
        context: Context<'a>,
        message: Message<'a>,
    ) -> BoxFuture<'a, Result<Option<Value>, HandlerError>> {
        Box::pin(async move { Handler::handle(self, context, message).await?.into_response() })
    }
}

/// Object-safe form of [`BatchHandler`].
pub trait ErasedBatchHandler: Send + Sync {
    /// Calls [`BatchHandler::handle_batch`], and converts its responses to JSON, one per message; `None` for a message without a response.
    #[doc(hidden)]
    fn handle_batch<'a>(
        &'a self,
        context: Context<'a>,
        messages: &'a [Message<'a>],
    ) -> BoxFuture<'a, Result<Vec<Option<Value>>, HandlerError>>;
}

impl<H: BatchHandler> ErasedBatchHandler for H {
    fn handle_batch<'a>(
        &'a self,
        context: Context<'a>,
        messages: &'a [Message<'a>],
    ) -> BoxFuture<'a, Result<Vec<Option<Value>>, HandlerError>> {
        let count = messages.len();
        Box::pin(
            async move { BatchHandler::handle_batch(self, context, messages).await?.into_responses(count) },
        )
    }
}
