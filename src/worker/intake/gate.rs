//! Whether a consumer may begin with messages, or somebody has paused it.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{RwLock, RwLockReadGuard, watch};

use crate::pg::Pause;

/// The gate in front of a consumer's lanes.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    pause: watch::Sender<Option<Pause>>,
    /// How often it was closed. What a lane took and did not begin with comes again only when its channel is closed, so a subscription
    /// that was made before the last time ends, even where the pause was over before anybody looked.
    closings: AtomicU64,
    /// Held shared by each lane that is at work on a batch.
    work: RwLock<()>,
}

impl Gate {
    /// Obeys; says whether anything changed.
    pub(crate) fn set(&self, pause: Option<Pause>) -> bool {
        self.pause.send_if_modified(|now| {
            let changed = *now != pause;
            if now.is_none() && pause.is_some() {
                self.closings.fetch_add(1, Ordering::AcqRel);
            }
            *now = pause;
            changed
        })
    }

    /// The pause, while there is one.
    pub(crate) fn pause(&self) -> Option<Pause> {
        self.pause.borrow().clone()
    }

    /// How often it was closed. Read it before looking at [`Gate::pause`], and before subscribing.
    pub(crate) fn closings(&self) -> u64 {
        self.closings.load(Ordering::Acquire)
    }

    /// To wait for a change.
    pub(crate) fn watch(&self) -> Watch {
        Watch(self.pause.subscribe())
    }

    /// A lane begins with a batch, which lasts as long as the guard. `None` while the consumer is paused: what was taken comes again with its
    /// channel.
    pub(crate) async fn begin(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let guard = self.work.read().await;
        self.pause.borrow().is_none().then_some(guard)
    }

    /// Waits until no lane is at work. Those that would begin meanwhile find the gate closed.
    pub(crate) async fn at_rest(&self) {
        drop(self.work.write().await);
    }
}

/// Waits for what people say. Can be dropped while waiting.
#[derive(Debug)]
pub(crate) struct Watch(watch::Receiver<Option<Pause>>);

impl Watch {
    /// Waits until the consumer is not paused.
    pub(crate) async fn open(&mut self) {
        // Never an error: the sender is the consumer's, which lives as long as whoever waits here.
        let _ = self.0.wait_for(Option::is_none).await;
    }

    /// Waits until something was said since the last time.
    pub(crate) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use futures::FutureExt as _;

    use super::*;

    fn pause() -> Option<Pause> {
        Some(Pause {
            consumer: "payments".to_owned(),
            paused_at: DateTime::UNIX_EPOCH,
            paused_until: None,
            paused_by: "ana".to_owned(),
            reason: "a deployment".to_owned(),
        })
    }

    #[tokio::test]
    async fn a_closed_gate_lets_work_end_and_none_begin() {
        let gate = Gate::default();
        let at_work = gate.begin().await.unwrap();
        assert!(gate.set(pause()));
        assert!(!gate.set(pause()), "the same again");
        assert!(gate.at_rest().now_or_never().is_none(), "a lane is at work");
        drop(at_work);
        gate.at_rest().await;
        assert!(gate.begin().await.is_none());
        assert!(gate.set(None));
        assert!(gate.begin().await.is_some());
        assert_eq!(gate.closings(), 1, "a subscription of before it notices, however short it was");
    }
}
