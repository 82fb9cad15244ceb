//! Retries a call to a store until it is answered.

use tokio_util::sync::CancellationToken;

use super::error::StoreError;
use oncely_core::backoff::Backoff;

/// Retries `call` until the store answers. Once `until` is cancelled, returns the last [`StoreError::Unavailable`]. `action` is for logs.
pub(super) async fn retry_until_answered<T, A>(
    until: &CancellationToken,
    action: &str,
    call: impl Fn() -> A,
) -> Result<T, StoreError>
where
    A: Future<Output = Result<T, StoreError>>,
{
    let mut backoff = Backoff::default();
    loop {
        match call().await {
            Err(error @ StoreError::Unavailable(_)) => {
                tracing::warn!(%error, "cannot {action}; retrying");
                tokio::select! {
                    biased;
                    () = until.cancelled() => return Err(error),
                    () = tokio::time::sleep(backoff.next_pause()) => {}
                }
            }
            result => return result,
        }
    }
}
