//! A key that a run holds, until its end is said.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::StoreError;
use super::held::Held;
use super::store::LeaseStore;
use crate::backoff::Backoff;

/// A key that a run holds. Dropped before the run's end is known, it is given back, so that the next run need not wait and no death is
/// counted.
pub(super) struct Holding<S: LeaseStore> {
    store: Arc<S>,
    held: Held,
    lease: Duration,
    is_over: bool,
}

impl<S: LeaseStore> Holding<S> {
    pub(super) fn new(store: Arc<S>, held: Held, lease: Duration) -> Self {
        Self { store, held, lease, is_over: false }
    }

    pub(super) fn held(&self) -> &Held {
        &self.held
    }

    /// The run has an end, which is recorded: nothing is given back.
    pub(super) fn over(mut self) {
        self.is_over = true;
    }

    /// Gives it back. What is not answered at once is said again in a task.
    pub(super) async fn give_back(mut self) {
        match self.store.release(&self.held).await {
            Err(StoreError::Unavailable(_)) => {}
            _ => self.is_over = true,
        }
    }
}

impl<S: LeaseStore> Drop for Holding<S> {
    fn drop(&mut self) {
        // Work that panics would run again and again: its lease runs out, which counts.
        if self.is_over || std::thread::panicking() {
            return;
        }
        // Where the runtime has ended, the process does.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(give_back(Arc::clone(&self.store), self.held.clone(), self.lease));
    }
}

/// Says it until it is answered, or the lease has run out.
async fn give_back<S: LeaseStore>(store: Arc<S>, held: Held, lease: Duration) {
    let (since, mut backoff) = (Instant::now(), Backoff::default());
    while let Err(error) = store.release(&held).await {
        if !matches!(error, StoreError::Unavailable(_)) || since.elapsed() >= lease {
            tracing::debug!(token = held.token, %error, "a lease was not given back: it runs out");
            return;
        }
        tokio::time::sleep(backoff.next()).await;
    }
}
