//! Whether a consumer may begin with messages, or somebody has paused it.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{RwLock, RwLockReadGuard, watch};

use crate::pg::Pause;

/// The gate in front of a consumer's lanes.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    pause: watch::Sender<Option<Pause>>,
    /// The same, cheap to look at for each delivery.
    is_closed: AtomicBool,
    /// Held shared by each lane that is at work on a batch.
    work: RwLock<()>,
}

impl Gate {
    /// Obeys; says whether anything changed.
    pub(crate) fn set(&self, pause: Option<Pause>) -> bool {
        self.is_closed.store(pause.is_some(), Ordering::Release);
        self.pause.send_if_modified(|now| {
            let changed = *now != pause;
            *now = pause;
            changed
        })
    }

    /// The pause, while there is one.
    pub(crate) fn pause(&self) -> Option<Pause> {
        self.pause.borrow().clone()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// To wait for a pause, or for its end, with [`Watch::until`].
    pub(crate) fn watch(&self) -> Watch {
        Watch(self.pause.subscribe())
    }

    /// A lane begins with a batch, which lasts as long as the guard. `None` while the consumer is paused: what was taken comes again with its
    /// channel.
    pub(crate) async fn begin(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let guard = self.work.read().await;
        (!self.is_closed()).then_some(guard)
    }

    /// Waits until no lane is at work. Those that would begin meanwhile find the gate closed.
    pub(crate) async fn at_rest(&self) {
        drop(self.work.write().await);
    }
}

/// Waits for a pause, or for its end.
#[derive(Debug)]
pub(crate) struct Watch(watch::Receiver<Option<Pause>>);

impl Watch {
    /// Waits until the consumer is paused, or until it is not. Can be dropped while waiting.
    pub(crate) async fn until(&mut self, paused: bool) {
        // Never an error: the sender is the consumer's, which lives as long as whoever waits here.
        let _ = self.0.wait_for(|pause| pause.is_some() == paused).await;
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
    }
}
