//! Limit of a consumer's unsettled bytes.
//!
//! The AMQP client reads everything that the broker sends, up to `prefetch` messages of any size, and keeps it until it is taken. So the
//! limit applies to reading: a connection reads a little at a time, and continues only when its read bytes are taken and the budget has
//! room (`valve`). A pause longer than two heartbeats costs the connection, never a message.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Limit of the bytes that a consumer's deliveries hold until they are settled.
#[derive(Clone, Debug)]
pub struct Budget(Arc<BudgetUsage>);

#[derive(Debug)]
struct BudgetUsage {
    limit: usize,
    bytes: AtomicUsize,
    freed: Notify,
}

/// A delivery's share of the budget, until it is dropped.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    usage: Arc<BudgetUsage>,
    bytes: usize,
}

impl Budget {
    /// Creates a budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(BudgetUsage { limit, bytes: AtomicUsize::new(0), freed: Notify::new() }))
    }

    /// Takes a share of the budget, also beyond the limit: a received message is always accepted.
    pub(super) fn take(&self, bytes: usize) -> Arc<BudgetShare> {
        self.0.bytes.fetch_add(bytes, Ordering::AcqRel);
        Arc::new(BudgetShare { usage: Arc::clone(&self.0), bytes })
    }

    /// Returns whether the limit is not reached.
    pub fn has_room(&self) -> bool {
        self.0.bytes.load(Ordering::Acquire) < self.0.limit
    }

    /// Waits until the budget has room: its limit is not reached.
    pub async fn wait_for_room(&self) {
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

impl BudgetShare {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        let before = self.usage.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        if before >= self.usage.limit && before - self.bytes < self.usage.limit {
            self.usage.freed.notify_waiters();
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
        assert!(budget.wait_for_room().now_or_never().is_none());
        drop(last);
        assert!(!budget.has_room(), "a clone of the delivery still lives");
        let mut waiting = Box::pin(budget.wait_for_room());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(other);
        assert!(waiting.now_or_never().is_some());
        drop(first);
        assert_eq!(budget.0.bytes.load(Ordering::Acquire), 0);
    }
}
