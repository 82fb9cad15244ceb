//! Functions and closures as handlers.

use std::future::Future;
use std::marker::PhantomData;

use super::{Context, Handler, HandlerError, IntoResponse, Message};

/// A function that does the work of one message; see [`handler_fn`]. Implemented for every fitting function, and by nothing else.
pub trait HandlerFn<'c, R>: Send + Sync + 'static {
    /// Future of its result.
    type Future: Future<Output = Result<R, HandlerError>> + Send + 'c;

    /// Calls the function.
    fn call(&self, context: Context<'c>, message: Message<'c>) -> Self::Future;
}

impl<'c, R, F, Returned> HandlerFn<'c, R> for F
where
    F: Fn(Context<'c>, Message<'c>) -> Returned + Send + Sync + 'static,
    Returned: Future<Output = Result<R, HandlerError>> + Send + 'c,
{
    type Future = Returned;

    fn call(&self, context: Context<'c>, message: Message<'c>) -> Returned {
        self(context, message)
    }
}

struct Function<F, R>(F, PhantomData<fn() -> R>);

impl<F, R> Handler for Function<F, R>
where
    F: for<'c> HandlerFn<'c, R>,
    R: IntoResponse + 'static,
{
    type Response = R;

    async fn handle(&self, context: Context<'_>, message: Message<'_>) -> Result<R, HandlerError> {
        call(&self.0, context, message).await
    }
}

fn call<'c, R, F: HandlerFn<'c, R>>(function: &F, context: Context<'c>, message: Message<'c>) -> F::Future {
    function.call(context, message)
}

/// Makes a handler of an async function or closure.
///
/// ```
/// use oncely::handler::handler_fn;
/// use oncely::{Context, HandlerError, Message};
///
/// async fn pay(mut context: Context<'_>, message: Message<'_>) -> Result<(), HandlerError> {
///     let insert = sqlx::query("insert into payments (order_id) values ($1)").bind(message.key());
///     insert.execute(context.connection()).await?;
///     Ok(())
/// }
///
/// let from_a_function = handler_fn(pay);
/// let from_a_closure = handler_fn(async |mut context: Context<'_>, message: Message<'_>| {
///     let insert = sqlx::query("insert into payments (order_id) values ($1)").bind(message.key());
///     insert.execute(context.connection()).await?;
///     Ok(())
/// });
/// # let _ = (from_a_function, from_a_closure);
/// ```
///
/// A closure must not lend captured values to its future: clone them first, or implement [`Handler`].
pub fn handler_fn<F, R>(function: F) -> impl Handler<Response = R>
where
    F: for<'c> HandlerFn<'c, R>,
    R: IntoResponse + 'static,
{
    Function(function, PhantomData)
}
