//! Whether a consumer may begin with messages, or somebody has paused it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use crate::pg::Pause;

/// What people have said, as far as this process has heard it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Said {
    /// Nobody could be asked yet: somebody may have paused it.
    #[default]
    Unknown,
    Open,
    Paused(Pause),
}

/// The gate in front of a consumer's lanes. Closed until it is known that nobody has paused the consumer.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    said: watch::Sender<Said>,
    /// How often it was closed. What a lane took and did not begin with comes again only when its channel is closed, so a subscription
    /// that was made before the last time ends, even where the pause was over before anybody looked.
    closings: AtomicU64,
    /// Batches at work, by how often the gate had been closed when they began.
    work: watch::Sender<BTreeMap<u64, usize>>,
}

/// A lane is at work on a batch, as long as it lives.
#[derive(Debug)]
pub(crate) struct AtWork<'a> {
    gate: &'a Gate,
    began: u64,
}

impl Drop for AtWork<'_> {
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
    /// Obeys; says whether anything changed.
    pub(crate) fn set(&self, pause: Option<Pause>) -> bool {
        let said = pause.map_or(Said::Open, Said::Paused);
        self.said.send_if_modified(|now| {
            let changed = *now != said;
            if *now == Said::Open && changed {
                self.closings.fetch_add(1, Ordering::AcqRel);
            }
            *now = said;
            changed
        })
    }

    /// The pause, while there is one.
    pub(crate) fn pause(&self) -> Option<Pause> {
        match &*self.said.borrow() {
            Said::Paused(pause) => Some(pause.clone()),
            Said::Unknown | Said::Open => None,
        }
    }

    /// It is not known yet whether somebody has paused the consumer.
    pub(crate) fn is_unknown(&self) -> bool {
        *self.said.borrow() == Said::Unknown
    }

    /// May messages be taken?
    pub(crate) fn is_open(&self) -> bool {
        *self.said.borrow() == Said::Open
    }

    /// How often it was closed. Read it before looking at [`Gate::is_open`], and before subscribing.
    pub(crate) fn closings(&self) -> u64 {
        self.closings.load(Ordering::Acquire)
    }

    /// To wait for a change.
    pub(crate) fn watch(&self) -> Watch {
        Watch(self.said.subscribe())
    }

    /// A lane begins with a batch, which lasts as long as what it gets. `None` while the gate is closed: what was taken comes again with
    /// its channel.
    pub(crate) fn begin(&self) -> Option<AtWork<'_>> {
        let began = self.closings();
        self.work.send_modify(|work| *work.entry(began).or_default() += 1);
        let at_work = AtWork { gate: self, began };
        // After it is counted: whoever closes the gate from now on waits for it.
        self.is_open().then_some(at_work)
    }

    /// Waits until no batch is at work that began before the gate was closed for the `closings`th time. Keeps nobody from beginning.
    pub(crate) async fn at_rest(&self, closings: u64) {
        let mut work = self.work.subscribe();
        // Never an error: the sender is ours.
        let _ = work.wait_for(|work| work.range(..closings).next().is_none()).await;
    }
}

/// Waits for what people say. Can be dropped while waiting.
#[derive(Debug)]
pub(crate) struct Watch(watch::Receiver<Said>);

impl Watch {
    /// Waits until messages may be taken.
    pub(crate) async fn open(&mut self) {
        // Never an error: the sender is the consumer's, which lives as long as whoever waits here.
        let _ = self.0.wait_for(|said| *said == Said::Open).await;
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
        assert!(gate.begin().is_none(), "nobody knows yet whether it is paused");
        assert!(gate.set(None));
        let at_work = gate.begin().unwrap();
        assert!(gate.set(pause()));
        assert!(!gate.set(pause()), "the same again");
        let closings = gate.closings();
        assert_eq!(closings, 1, "a subscription of before it notices, however short it was");
        assert!(gate.at_rest(closings).now_or_never().is_none(), "a lane is at work");
        assert!(gate.begin().is_none());
        assert!(gate.set(None));
        let later = gate.begin().unwrap();
        assert!(gate.at_rest(closings).now_or_never().is_none(), "the one of before still is");
        drop(at_work);
        gate.at_rest(closings).await;
        drop(later);
    }
}
