//! A handler that takes too long is told to stop where it works: in PostgreSQL.

use std::time::Duration;

use super::shared::Shared;
use super::stop::Stop;
use crate::fault::{Fault, FaultClass};
use crate::pg::Backend;

/// How long a handler may take to return after its statement was cancelled.
const GRACE: Duration = Duration::from_secs(2);

/// Waits for a handler's call. Past the consumer's deadline PostgreSQL cancels what the handler waits for, and the handler's
/// failure goes its usual way, on a connection that stays whole. A handler that waits for something else and still does not
/// return is dropped together with its connection.
pub(crate) async fn until_deadline<T>(
    shared: &Shared,
    backend: Backend,
    call: impl Future<Output = Result<T, Stop>>,
) -> Result<T, Stop> {
    let limit = shared.consumer.deadline;
    let mut call = std::pin::pin!(call);
    if let Ok(done) = tokio::time::timeout(limit, call.as_mut()).await {
        return done;
    }
    let consumer = &shared.consumer.name;
    tracing::warn!(%consumer, ?limit, "a handler is past its deadline: its statement is cancelled");
    shared.cancel(backend).await;
    let late =
        || Fault::new(FaultClass::Transient, None, format!("the handler was not done within {limit:?}"));
    match tokio::time::timeout(GRACE, call).await {
        Ok(Err(Stop::Failed(_))) => Err(Stop::Failed(late())),
        Ok(other) => other,
        Err(_) => {
            tracing::error!(%consumer, "a handler does not return after its deadline: its connection is closed");
            Err(Stop::Tainted(late()))
        }
    }
}
