//! A key held by a run until its end is recorded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::StoreError;
use super::lease_id::LeaseId;
use super::store::LeaseStore;
use oncely_core::backoff::Backoff;

/// A key held by a run. If dropped before the end of the run is known, the key is released, so that the next run need not wait and no crash
/// is counted.
pub(super) struct HeldKeyGuard<S: LeaseStore> {
    store: Arc<S>,
    lease_id: LeaseId,
    lease: Duration,
    is_over: bool,
}

impl<S: LeaseStore> HeldKeyGuard<S> {
    pub(super) fn new(store: Arc<S>, lease_id: LeaseId, lease: Duration) -> Self {
        Self { store, lease_id, lease, is_over: false }
    }

    pub(super) fn lease_id(&self) -> &LeaseId {
        &self.lease_id
    }

    /// Marks the run as ended by a record, so that the drop of the guard does not release the key.
    pub(super) fn mark_ended(mut self) {
        self.is_over = true;
    }

    /// Releases the key. If the store does not answer, a task retries the release until the lease has run out.
    pub(super) async fn release(mut self) {
        match self.store.release(&self.lease_id).await {
            Err(StoreError::Unavailable(_)) => {}
            _ => self.is_over = true,
        }
    }
}

impl<S: LeaseStore> Drop for HeldKeyGuard<S> {
    fn drop(&mut self) {
        // Work that panics would run again and again if released: its lease runs out, which counts as a crash.
        if self.is_over || std::thread::panicking() {
            return;
        }
        // Without a runtime the process is ending.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(release_until_answered(Arc::clone(&self.store), self.lease_id.clone(), self.lease));
    }
}

/// Retries the release of a key until it is answered or the lease has run out.
async fn release_until_answered<S: LeaseStore>(store: Arc<S>, lease_id: LeaseId, lease: Duration) {
    let (since, mut backoff) = (Instant::now(), Backoff::default());
    while let Err(error) = store.release(&lease_id).await {
        if !matches!(error, StoreError::Unavailable(_)) || since.elapsed() >= lease {
            tracing::debug!(token = lease_id.token, %error, "lease not released; it will expire");
            return;
        }
        tokio::time::sleep(backoff.next_pause()).await;
    }
}
