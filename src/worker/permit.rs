//! The right to run a transaction now, beside the others of the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::isolate::Company;

/// Longest wait for the other lanes of a consumer. One of them may be in a handler up to its deadline; the batch then runs beside it.
const PATIENCE: Duration = Duration::from_secs(2);

/// For how many batches after one that stood in another's way a consumer's lanes go one after another.
const SERIAL: u32 = 64;

/// What the lanes of one consumer hold their permits of.
#[derive(Debug)]
pub(crate) struct Permits {
    /// Of this consumer: held shared, and alone by a batch that has met another one's locks.
    lanes: Arc<RwLock<()>>,
    /// Of the whole process, for redelivered messages only, held from a message's mark to its outcome: alone by one that was at work
    /// when a process died, so that no other marked message stands by while it may kill this one. Others neither wait for it nor keep it
    /// waiting: what kills a process at its first delivery is told apart at its second.
    suspects: Arc<RwLock<()>>,
    serial: AtomicU32,
}

impl Permits {
    pub(crate) fn new(suspects: Arc<RwLock<()>>) -> Self {
        Self { lanes: Arc::default(), suspects, serial: AtomicU32::new(0) }
    }

    /// Two batches of this consumer stood in each other's way: their lanes go one after another for a while.
    pub(crate) fn contended(&self) {
        self.serial.store(SERIAL, Ordering::Release);
    }

    /// Do they go one after another now?
    pub(crate) fn is_serial(&self) -> bool {
        self.serial.load(Ordering::Acquire) > 0
    }

    /// A batch is decided.
    pub(crate) fn decided(&self) {
        let fewer = |serial: u32| serial.checked_sub(1);
        // An error says that it was zero, as nearly always.
        let _ = self.serial.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer);
    }

    /// Waits for the right to run.
    pub(crate) async fn take(&self, company: Company) -> Permit {
        let exclusive = self.is_serial();
        let alone = async { tokio::time::timeout(PATIENCE, Arc::clone(&self.lanes).write_owned()).await };
        // Always in this order: lanes that wait for one of both can't wait for each other.
        let lanes = match exclusive {
            true => alone.await.ok().map(Lanes::Alone),
            false => None,
        };
        let lanes = match lanes {
            Some(lanes) => lanes,
            None => Lanes::Shared(Arc::clone(&self.lanes).read_owned().await),
        };
        let suspects = Arc::clone(&self.suspects);
        let suspects = match company {
            Company::Any => None,
            Company::Suspects => Some(Suspects::Shared(suspects.read_owned().await)),
            Company::Nobody => Some(Suspects::Alone(suspects.write_owned().await)),
        };
        Permit { exclusive, _lanes: lanes, _suspects: suspects }
    }
}

/// Held while a lane decides.
#[derive(Debug)]
pub(crate) struct Permit {
    /// It was asked for alone.
    pub(crate) exclusive: bool,
    _lanes: Lanes,
    _suspects: Option<Suspects>,
}

#[derive(Debug)]
enum Lanes {
    Shared(#[expect(dead_code, reason = "held")] OwnedRwLockReadGuard<()>),
    Alone(#[expect(dead_code, reason = "held")] OwnedRwLockWriteGuard<()>),
}

#[derive(Debug)]
enum Suspects {
    Shared(#[expect(dead_code, reason = "held")] OwnedRwLockReadGuard<()>),
    Alone(#[expect(dead_code, reason = "held")] OwnedRwLockWriteGuard<()>),
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn nobody_waits_for_a_suspect_but_suspects() {
        let suspects = Arc::default();
        let (one, other) = (Permits::new(Arc::clone(&suspects)), Permits::new(suspects));
        let _alone = one.take(Company::Nobody).await;
        assert!(one.take(Company::Any).now_or_never().is_some());
        assert!(other.take(Company::Any).now_or_never().is_some());
        assert!(other.take(Company::Suspects).now_or_never().is_none());
    }

    #[tokio::test]
    async fn lanes_that_stood_in_each_others_way_go_one_after_another_for_a_while() {
        let permits = Permits::new(Arc::default());
        permits.contended();
        let first = permits.take(Company::Any).await;
        assert!(first.exclusive && permits.take(Company::Any).now_or_never().is_none());
        drop(first);
        for _ in 0..SERIAL {
            assert!(permits.take(Company::Any).await.exclusive);
            permits.decided();
        }
        permits.decided();
        let _one = permits.take(Company::Any).await;
        assert!(permits.take(Company::Any).now_or_never().is_some());
    }
}
