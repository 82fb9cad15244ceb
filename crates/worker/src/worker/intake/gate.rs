//! Gate of a consumer: whether it may begin with messages, or an operator has paused it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use oncely_postgres::Pause;

/// State of the pause, as far as this process knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum PauseState {
    /// Not read yet: the consumer may be paused.
    #[default]
    Unknown,
    Open,
    Paused(Pause),
}

/// Gate in front of a consumer's lanes. Closed until it is known that the consumer is not paused.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: watch::Sender<PauseState>,
    /// Number of times it was closed. A delivery that a lane took and did not begin with comes again only when its channel is closed, so a
    /// subscription made before the last closing ends, even if the pause was over before it was noticed.
    closings: AtomicU64,
    /// Batches at work, by the number of closings when they began.
    work: watch::Sender<BTreeMap<u64, usize>>,
}

/// Guard of a lane that is at work on a batch.
#[derive(Debug)]
pub(crate) struct BatchGuard<'a> {
    gate: &'a Gate,
    began: u64,
}

impl Drop for BatchGuard<'_> {
    fn drop(&mut self) {
        self.gate.work.send_modify(|work| {
            if let Some(batches) = work.get_mut(&self.began) {
                *batches -= 1;
                if *batches == 0 {
                    work.remove(&self.began);
                }
            }
        });
    }
}

impl Gate {
    /// Applies a pause or its end; returns whether anything changed.
    pub(crate) fn set_pause(&self, pause: Option<Pause>) -> bool {
        let state = pause.map_or(PauseState::Open, PauseState::Paused);
        self.state.send_if_modified(|current| {
            let changed = *current != state;
            if *current == PauseState::Open && changed {
                self.closings.fetch_add(1, Ordering::AcqRel);
            }
            *current = state;
            changed
        })
    }

    /// Returns the pause of the consumer; `None` if it is not paused, or if that is not read yet.
    pub(crate) fn current_pause(&self) -> Option<Pause> {
        match &*self.state.borrow() {
            PauseState::Paused(pause) => Some(pause.clone()),
            PauseState::Unknown | PauseState::Open => None,
        }
    }

    /// Returns whether the state of the pause was not read yet.
    pub(crate) fn is_unknown(&self) -> bool {
        *self.state.borrow() == PauseState::Unknown
    }

    /// Returns whether messages may be taken.
    pub(crate) fn is_open(&self) -> bool {
        *self.state.borrow() == PauseState::Open
    }

    /// Returns the number of times the gate was closed. Read it before [`Gate::is_open`], and before subscribing.
    pub(crate) fn closing_count(&self) -> u64 {
        self.closings.load(Ordering::Acquire)
    }

    /// Returns a watch that waits for changes.
    pub(crate) fn watch(&self) -> PauseWatch {
        PauseWatch(self.state.subscribe())
    }

    /// Begins a batch, which lasts as long as the returned guard. `None` while the gate is closed: the deliveries taken come again with
    /// their channel.
    pub(crate) fn begin_batch(&self) -> Option<BatchGuard<'_>> {
        let began = self.closing_count();
        self.work.send_modify(|work| *work.entry(began).or_default() += 1);
        let guard = BatchGuard { gate: self, began };
        // After it is counted: a closing from now on waits for it.
        self.is_open().then_some(guard)
    }

    /// Waits until no batch is at work that began before the gate was closed for the `closings`th time. Others may begin meanwhile.
    pub(crate) async fn wait_until_at_rest(&self, closings: u64) {
        let mut work = self.work.subscribe();
        // Never an error: `self` has the sender.
        let _ = work.wait_for(|work| work.range(..closings).next().is_none()).await;
    }
}

/// Watch of the gate. Can be dropped while waiting.
#[derive(Debug)]
pub(crate) struct PauseWatch(watch::Receiver<PauseState>);

impl PauseWatch {
    /// Waits until messages may be taken.
    pub(crate) async fn wait_until_open(&mut self) {
        // Never an error: the sender is the consumer's, which lives as long as this task.
        let _ = self.0.wait_for(|state| *state == PauseState::Open).await;
    }

    /// Waits until the pause has changed since the last wait.
    pub(crate) async fn wait_for_change(&mut self) {
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
        assert!(gate.begin_batch().is_none(), "nobody knows yet whether it is paused");
        assert!(gate.set_pause(None));
        let at_work = gate.begin_batch().unwrap();
        assert!(gate.set_pause(pause()));
        assert!(!gate.set_pause(pause()), "the same again");
        let closings = gate.closing_count();
        assert_eq!(closings, 1, "a subscription of before it notices, however short it was");
        assert!(gate.wait_until_at_rest(closings).now_or_never().is_none(), "a lane is at work");
        assert!(gate.begin_batch().is_none());
        assert!(gate.set_pause(None));
        let later = gate.begin_batch().unwrap();
        assert!(gate.wait_until_at_rest(closings).now_or_never().is_none(), "the one of before still is");
        drop(at_work);
        gate.wait_until_at_rest(closings).await;
        drop(later);
    }
}
