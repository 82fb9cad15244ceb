//! Repeats a call to a store until it answers.

use tokio_util::sync::CancellationToken;

use super::error::StoreError;
use oncely_core::backoff::Backoff;

/// Repeats `ask` until the store answers. Once `until` is cancelled, returns the last [`StoreError::Unavailable`].
pub(super) async fn until_answered<T, A>(
    until: &CancellationToken,
    what: &str,
    ask: impl Fn() -> A,
) -> Result<T, StoreError>
where
    A: Future<Output = Result<T, StoreError>>,
{
    let mut backoff = Backoff::default();
    loop {
        match ask().await {
            Err(error @ StoreError::Unavailable(_)) => {
                tracing::warn!(%error, "cannot {what}; retrying");
                tokio::select! {
                    biased;
                    () = until.cancelled() => return Err(error),
                    () = tokio::time::sleep(backoff.next_pause()) => {}
                }
            }
            answered => return answered,
        }
    }
}
