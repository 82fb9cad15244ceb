//! How many bytes of deliveries a consumer may hold.
//!
//! The AMQP client reads whatever the broker sends, up to `prefetch` messages of any size, and keeps it until somebody takes it. So
//! the bound is where the bytes come in: a connection reads a little at a time, and on only when what it has read is taken and
//! there is room in the budget (`valve`). A pause longer than two heartbeats costs the connection, never a message.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The bytes that the deliveries of a consumer may hold until they are settled.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Held>);

#[derive(Debug)]
struct Held {
    most: usize,
    bytes: AtomicUsize,
    freed: Notify,
}

/// A delivery's share, as long as it lives.
#[derive(Debug)]
pub(crate) struct Share {
    held: Arc<Held>,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(Held { most, bytes: AtomicUsize::new(0), freed: Notify::new() }))
    }

    /// What has come is taken in any case: the last message may exceed the budget.
    pub(super) fn take(&self, bytes: usize) -> Arc<Share> {
        self.0.bytes.fetch_add(bytes, Ordering::AcqRel);
        Arc::new(Share { held: Arc::clone(&self.0), bytes })
    }

    /// Is there room for more?
    pub(crate) fn has_room(&self) -> bool {
        self.0.bytes.load(Ordering::Acquire) < self.0.most
    }

    /// Waits until there is room.
    pub(crate) async fn room(&self) {
        loop {
            let mut freed = std::pin::pin!(self.0.freed.notified());
            freed.as_mut().enable();
            if self.has_room() {
                return;
            }
            freed.await;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let before = self.held.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        if before >= self.held.most && before - self.bytes < self.held.most {
            self.held.freed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn there_is_room_until_the_budget_is_used_up_and_again_when_a_share_is_gone() {
        let budget = Budget::new(100);
        let first = budget.take(60);
        assert!(budget.has_room());
        let last = budget.take(1_000);
        let other = Arc::clone(&last);
        assert!(budget.room().now_or_never().is_none());
        drop(last);
        assert!(!budget.has_room(), "a clone of the delivery still lives");
        let mut waiting = Box::pin(budget.room());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(other);
        assert!(waiting.now_or_never().is_some());
        drop(first);
        assert_eq!(budget.0.bytes.load(Ordering::Acquire), 0);
    }
}
