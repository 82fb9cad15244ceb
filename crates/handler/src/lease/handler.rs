//! Handlers that run under a lease.

use std::future::Future;

use futures::future::BoxFuture;

use super::{Finish, Lease};
use crate::{HandlerError, Message};

/// A handler with effects outside PostgreSQL.
///
/// It runs without a transaction. Each call of another system is a step ([`Lease::step`]); the steps record its work, so it may be called
/// again for the same message, and then gets their results. It is dropped half-way if its lease is lost, after `max_run`, and if the worker
/// stops and it does not: two seconds after [`Lease::wait_until_lost`] has returned, or when a call that is not repeated has ended.
///
/// ```
/// use std::time::Duration;
/// use oncely::handler::{Finish, HandlerError, Lease, LeasedHandler, Message};
/// use oncely::lease::{Repeat, Step};
///
/// const CHARGE: Step = Step::new("charge", Repeat::Within(Duration::from_secs(24 * 3_600)));
///
/// struct Charges;
///
/// impl LeasedHandler for Charges {
///     async fn handle(&self, lease: &Lease, message: Message<'_>) -> Result<Finish, HandlerError> {
///         let order: serde_json::Value = message.json()?;
///         let charge: String = lease
///             .step(&CHARGE, async |call| {
///                 // provider.charge(&order).header("Idempotency-Key", call.key).send().await?
///                 Ok(format!("{} by {}", order, call.key))
///             })
///             .await?;
///         Finish::response(charge)
///     }
/// }
/// ```
pub trait LeasedHandler: Send + Sync + 'static {
    /// Does the work of one message.
    ///
    /// # Errors
    /// If the work fails: the error decides about another try; see [`HandlerError`].
    fn handle(
        &self,
        lease: &Lease,
        message: Message<'_>,
    ) -> impl Future<Output = Result<Finish, HandlerError>> + Send;
}

/// Object-safe form of [`LeasedHandler`].
pub trait ErasedLeasedHandler: Send + Sync {
    /// Calls [`LeasedHandler::handle`].
    #[doc(hidden)]
    fn handle<'a>(
        &'a self,
        lease: &'a Lease,
        message: Message<'a>,
    ) -> BoxFuture<'a, Result<Finish, HandlerError>>;
}

impl<H: LeasedHandler> ErasedLeasedHandler for H {
    fn handle<'a>(
        &'a self,
        lease: &'a Lease,
        message: Message<'a>,
    ) -> BoxFuture<'a, Result<Finish, HandlerError>> {
        Box::pin(LeasedHandler::handle(self, lease, message))
    }
}
