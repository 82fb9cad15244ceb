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
    held: LeaseId,
    lease: Duration,
    is_over: bool,
}

impl<S: LeaseStore> HeldKeyGuard<S> {
    pub(super) fn new(store: Arc<S>, held: LeaseId, lease: Duration) -> Self {
        Self { store, held, lease, is_over: false }
    }

    pub(super) fn held(&self) -> &LeaseId {
        &self.held
    }

    /// Marks the run as ended by a record: the key is not released.
    pub(super) fn over(mut self) {
        self.is_over = true;
    }

    /// Releases the key. Without an answer, the release is repeated in a task.
    pub(super) async fn give_back(mut self) {
        match self.store.release(&self.held).await {
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
        runtime.spawn(give_back(Arc::clone(&self.store), self.held.clone(), self.lease));
    }
}

/// Repeats the release until it is answered or the lease has run out.
async fn give_back<S: LeaseStore>(store: Arc<S>, held: LeaseId, lease: Duration) {
    let (since, mut backoff) = (Instant::now(), Backoff::default());
    while let Err(error) = store.release(&held).await {
        if !matches!(error, StoreError::Unavailable(_)) || since.elapsed() >= lease {
            tracing::debug!(token = held.token, %error, "lease not released; it will expire");
            return;
        }
        tokio::time::sleep(backoff.next_pause()).await;
    }
}
