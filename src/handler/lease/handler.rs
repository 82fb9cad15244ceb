//! Handlers that run under a lease.

use std::future::Future;

use futures::future::BoxFuture;

use super::{Finish, Lease};
use crate::handler::{HandlerError, Message};

/// A handler whose effects are outside PostgreSQL.
///
/// It runs without a transaction. What it calls outside is a step ([`Lease::step`]); what it has done is known by its steps, so it may
/// be called again for the same message, and then gets their results. It is dropped half-way where its lease is lost, after `max_run`, and
/// where the worker stops and it does not: two seconds after [`Lease::lost`] has said so.
///
/// ```
/// use std::time::Duration;
/// use oncely::lease::{Finish, Lease, LeasedHandler, Repeat, Step};
/// use oncely::{HandlerError, Message};
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
    /// What the failure means for another try; see [`HandlerError`].
    fn handle(
        &self,
        lease: &Lease,
        message: Message<'_>,
    ) -> impl Future<Output = Result<Finish, HandlerError>> + Send;
}

/// [`LeasedHandler`], as it can be stored.
pub(crate) trait ErasedLeasedHandler: Send + Sync {
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
