//! Limits the large messages of a consumer that are at work at the same time.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most large messages at work, which is the default number of lanes: the statement of each has its body three times more.
const AT_ONCE: usize = 2;

/// Places for large messages at work. A lane that waits for one keeps it until its transaction ends, so each gets its turn.
#[derive(Debug)]
pub(crate) struct LargeMessages(Arc<Semaphore>);

impl Default for LargeMessages {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl LargeMessages {
    /// Takes a place if one is free.
    pub(crate) fn try_take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_owned().ok()
    }

    /// Waits for a place. Never returns `None`: places are not closed.
    pub(crate) async fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).acquire_owned().await.ok()
    }
}
