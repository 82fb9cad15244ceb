//! The right to run a transaction now, beside the others of the process.

use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::task::JoinHandle;

/// Isolation of a transaction from the rest of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isolation {
    None,
    /// Others run beside it; its messages are suspects, so their runs are counted before they begin.
    Marked,
    /// No other runs beside it: a suspect that was at work when a process crashed. Counted as well.
    Exclusive,
}

/// Maximum wait for other lanes, which also delays those queued behind it. A lane may be in a handler up to its deadline.
const MAX_WAIT_ALONE: Duration = Duration::from_secs(2);

/// Maximum wait for the runs under leases that are at work, and the time for which an exclusive one then keeps others waiting: a run may
/// last, and a waiting writer blocks all later readers.
const EXCLUSIVE_WAIT: Duration = Duration::from_millis(100);
const MAX_TIME_ALONE_AMONG_RUNS: Duration = Duration::from_secs(1);

/// Time for which an exclusive transaction keeps the others waiting; after that it goes on beside them. A message that kills its process
/// mostly does so within this time, and a batch that holds its locks for longer is seldom the one that the others deadlock with.
const MAX_TIME_ALONE: Duration = Duration::from_secs(5);

/// Rights to a whole process: while a suspect holds them alone, no other message can be the one that kills it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProcessRights {
    /// Held shared by transactions, which are short.
    transactions: Arc<RwLock<()>>,
    /// Held shared by what may last: runs under leases, and suspects after their time alone. A transaction never waits for it.
    runs: Arc<RwLock<()>>,
    /// Held by the suspect at work until it ends, also while others run beside it again: of two suspects side by side, one would be charged
    /// with the other's crash. Only its holder waits for the other two alone.
    suspects: Arc<Mutex<()>>,
}

/// The reason why a suspect can't run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAlone {
    /// Others are at work, and last.
    Others,
    /// Another suspect is at work.
    Suspect,
}

/// Locks that the permits of a consumer's lanes hold.
#[derive(Debug)]
pub(crate) struct Permits {
    /// Held shared, or alone by a batch that takes turns with others: one lane of a process waits for the turn.
    lanes: Arc<RwLock<()>>,
    process: ProcessRights,
    max_time_alone: Duration,
}

impl Permits {
    pub(crate) fn new(process: ProcessRights) -> Self {
        Self { lanes: Arc::default(), process, max_time_alone: MAX_TIME_ALONE }
    }

    /// Creates the permits of the same consumer's lanes at another node: suspects run alone in the process all the same.
    pub(crate) fn for_another_node(&self) -> Self {
        Self::new(self.process.clone())
    }

    /// Waits for the permit to run. If `exclusive`, no other lane of the consumer runs beside the transaction, for [`MAX_TIME_ALONE`] at
    /// most.
    ///
    /// # Errors
    /// If a transaction must be alone and others stay at work: it waits aside, and they don't wait for it.
    pub(crate) async fn take(&self, isolation: Isolation, exclusive: bool) -> Result<Permit, NotAlone> {
        let alone =
            async { tokio::time::timeout(MAX_WAIT_ALONE, Arc::clone(&self.lanes).write_owned()).await };
        // Always in this order: lanes that wait for one of the two can't wait for each other.
        let lanes = match exclusive {
            true => alone
                .await
                .ok()
                .map(|guard| PermitLock::Alone(ExclusiveLock::hold(guard, self.max_time_alone))),
            false => None,
        };
        let lanes = match lanes {
            Some(lanes) => lanes,
            None => PermitLock::Shared(Arc::clone(&self.lanes).read_owned().await),
        };
        let transactions = Arc::clone(&self.process.transactions);
        let (process, runs, suspect) = match isolation {
            Isolation::None | Isolation::Marked => {
                (PermitLock::Shared(transactions.read_owned().await), None, None)
            }
            Isolation::Exclusive => {
                let suspect = self.take_turn_of_suspects().await?;
                let alone = tokio::time::timeout(MAX_WAIT_ALONE, transactions.write_owned()).await;
                let alone = alone.map_err(|_| NotAlone::Others)?;
                let runs = Arc::clone(&self.process.runs).try_write_owned().map_err(|_| NotAlone::Others)?;
                let runs = PermitLock::Alone(ExclusiveLock::hold_and_share(runs, self.max_time_alone));
                let process = PermitLock::Alone(ExclusiveLock::hold(alone, self.max_time_alone));
                (process, Some(runs), Some(suspect))
            }
        };
        let (lanes, process) = (Some(lanes), Some(process));
        Ok(Permit { exclusive, _lanes: lanes, _process: process, _runs: runs, _suspect: suspect })
    }

    /// Waits for the suspects that came earlier, but not for a run that lasts, a suspect's too: `runs` is then shared.
    async fn take_turn_of_suspects(&self) -> Result<OwnedMutexGuard<()>, NotAlone> {
        let suspects = Arc::clone(&self.process.suspects);
        if self.process.runs.try_write().is_err() && self.process.runs.try_read().is_ok() {
            return Err(match suspects.try_lock_owned() {
                Ok(_) => NotAlone::Others,
                Err(_) => NotAlone::Suspect,
            });
        }
        let turn = tokio::time::timeout(MAX_WAIT_ALONE, suspects.lock_owned()).await;
        turn.map_err(|_| NotAlone::Suspect)
    }

    /// Takes the permit of a run under a lease. The run may last, so no transaction waits for its permit.
    pub(crate) async fn take_for_run(&self) -> Permit {
        let runs = PermitLock::Shared(Arc::clone(&self.process.runs).read_owned().await);
        Permit { exclusive: false, _lanes: None, _process: None, _runs: Some(runs), _suspect: None }
    }

    /// Takes the permit of a suspect among runs that may last.
    ///
    /// # Errors
    /// If others are at work for longer than [`EXCLUSIVE_WAIT`], or another suspect is: it waits aside, and no other run waits for it.
    pub(crate) async fn take_among_runs(&self) -> Result<Permit, NotAlone> {
        let suspect = Arc::clone(&self.process.suspects).try_lock_owned().map_err(|_| NotAlone::Suspect)?;
        let runs = tokio::time::timeout(EXCLUSIVE_WAIT, Arc::clone(&self.process.runs).write_owned());
        let runs = runs.await.map_err(|_| NotAlone::Others)?;
        let transactions = Arc::clone(&self.process.transactions).write_owned();
        let transactions =
            tokio::time::timeout(EXCLUSIVE_WAIT, transactions).await.map_err(|_| NotAlone::Others)?;
        let alone = self.max_time_alone.min(MAX_TIME_ALONE_AMONG_RUNS);
        let process = Some(PermitLock::Alone(ExclusiveLock::hold(transactions, alone)));
        let runs = Some(PermitLock::Alone(ExclusiveLock::hold_and_share(runs, alone)));
        Ok(Permit { exclusive: true, _lanes: None, _process: process, _runs: runs, _suspect: Some(suspect) })
    }
}

/// Held from a message's mark to its outcome.
#[derive(Debug)]
pub(crate) struct Permit {
    /// Exclusive access was requested.
    pub(crate) exclusive: bool,
    _lanes: Option<PermitLock>,
    _process: Option<PermitLock>,
    _runs: Option<PermitLock>,
    _suspect: Option<OwnedMutexGuard<()>>,
}

#[derive(Debug)]
enum PermitLock {
    Shared(#[expect(dead_code, reason = "held")] OwnedRwLockReadGuard<()>),
    Alone(#[expect(dead_code, reason = "held")] ExclusiveLock),
}

/// Exclusive hold of the lanes or the process, until it is dropped or its time is over.
#[derive(Debug)]
struct ExclusiveLock {
    guard: Arc<StdMutex<HeldGuard>>,
    timer: JoinHandle<()>,
}

#[derive(Debug)]
enum HeldGuard {
    Alone(OwnedRwLockWriteGuard<()>),
    Shared(#[expect(dead_code, reason = "held")] OwnedRwLockReadGuard<()>),
    Nothing,
}

impl ExclusiveLock {
    /// Holds a lock alone for up to `limit`, then releases it.
    fn hold(guard: OwnedRwLockWriteGuard<()>, limit: Duration) -> Self {
        Self::hold_until(guard, limit, |_| HeldGuard::Nothing)
    }

    /// Holds a lock alone for up to `limit`, then shares it with others.
    fn hold_and_share(guard: OwnedRwLockWriteGuard<()>, limit: Duration) -> Self {
        Self::hold_until(guard, limit, |guard| HeldGuard::Shared(guard.downgrade()))
    }

    /// Holds a lock alone for up to `limit`; a task then applies `then` to it.
    fn hold_until(
        guard: OwnedRwLockWriteGuard<()>,
        limit: Duration,
        then: fn(OwnedRwLockWriteGuard<()>) -> HeldGuard,
    ) -> Self {
        let lock_guard = Arc::new(StdMutex::new(HeldGuard::Alone(guard)));
        let timed_guard = Arc::clone(&lock_guard);
        let timer = tokio::spawn(async move {
            tokio::time::sleep(limit).await;
            let mut lock_guard = timed_guard.lock().unwrap_or_else(PoisonError::into_inner);
            if let HeldGuard::Alone(guard) = std::mem::replace(&mut *lock_guard, HeldGuard::Nothing) {
                *lock_guard = then(guard);
            }
        });
        Self { guard: lock_guard, timer }
    }
}

impl Drop for ExclusiveLock {
    fn drop(&mut self) {
        // At once, and not when the task ends: the next suspect would find it still held.
        *self.guard.lock().unwrap_or_else(PoisonError::into_inner) = HeldGuard::Nothing;
        self.timer.abort();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// Returns whether a transaction gets its permit at once.
    fn is_taken(permits: &Permits, isolation: Isolation) -> bool {
        permits.take(isolation, false).now_or_never().is_some_and(|permit| permit.is_ok())
    }

    #[tokio::test]
    async fn a_suspect_is_alone_in_the_process_and_not_for_long() {
        let process = ProcessRights::default();
        let one = Permits { max_time_alone: Duration::from_millis(100), ..Permits::new(process.clone()) };
        let other = Permits::new(process);
        let alone = one.take(Isolation::Exclusive, false).await.unwrap();
        for isolation in [Isolation::None, Isolation::Marked, Isolation::Exclusive] {
            assert!(other.take(isolation, false).now_or_never().is_none());
        }
        let beside =
            tokio::time::timeout(Duration::from_secs(30), other.take(Isolation::None, false)).await.unwrap();
        assert!(beside.is_ok(), "it is still at work, and nobody waits for it");
        let next = one.take(Isolation::Exclusive, false).now_or_never();
        assert_eq!(
            next.and_then(Result::err),
            Some(NotAlone::Suspect),
            "nor does the next one, which would wait long"
        );
        assert!(is_taken(&other, Isolation::None));
        drop(beside);
        assert_eq!(
            other.take_among_runs().await.err(),
            Some(NotAlone::Suspect),
            "another suspect waits for as long as it is at work"
        );
        drop(alone);
        assert!(other.take(Isolation::Exclusive, false).await.is_ok());
    }

    #[tokio::test]
    async fn suspects_of_all_lanes_are_at_work_one_after_another() {
        let process = ProcessRights::default();
        let (one, other) = (Permits::new(process.clone()), Permits::new(process));
        let first = one.take(Isolation::Exclusive, false).await.unwrap();
        let mut second = std::pin::pin!(other.take(Isolation::Exclusive, false));
        assert!(second.as_mut().now_or_never().is_none());
        let third = one.take(Isolation::Exclusive, false);
        let mut third = std::pin::pin!(third);
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        let second = second.await.expect("its turn comes");
        drop(second);
        assert!(third.await.is_ok());
    }

    #[tokio::test]
    async fn a_run_that_lasts_keeps_no_transaction_and_no_other_run_waiting() {
        let process = ProcessRights::default();
        let (leased, lanes) = (Permits::new(process.clone()), Permits::new(process));
        let lasting = leased.take_for_run().await;
        let suspect = leased.take_among_runs();
        let mut suspect = std::pin::pin!(suspect);
        assert!(suspect.as_mut().now_or_never().is_none(), "it waits for a moment");
        let next = leased.take_among_runs().now_or_never();
        assert!(next.is_some_and(|busy| busy.err() == Some(NotAlone::Suspect)), "one at a time");
        assert!(is_taken(&lanes, Isolation::None));
        assert_eq!(suspect.await.err(), Some(NotAlone::Others), "and then waits aside");
        let of_lanes = lanes.take(Isolation::Exclusive, false).now_or_never();
        assert_eq!(
            of_lanes.and_then(Result::err),
            Some(NotAlone::Others),
            "nobody waits for a run that lasts"
        );
        assert!(leased.take_for_run().now_or_never().is_some() && is_taken(&lanes, Isolation::None));
        drop(lasting);
        let alone = leased.take_among_runs().await.unwrap();
        assert!(lanes.take(Isolation::None, false).now_or_never().is_none());
        assert!(leased.take_for_run().now_or_never().is_none());
        drop(alone);
        let of_lanes = lanes.take(Isolation::Exclusive, false).await;
        assert!(of_lanes.is_ok() && leased.take_for_run().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_suspect_that_lasts_under_a_lease_keeps_no_lane_waiting() {
        let process = ProcessRights::default();
        let leased = Permits { max_time_alone: Duration::from_millis(10), ..Permits::new(process.clone()) };
        let lanes = Permits::new(process);
        let lasting = leased.take_among_runs().await.unwrap();
        let beside = tokio::time::timeout(Duration::from_secs(30), leased.take_for_run()).await;
        drop(beside.expect("it is alone for a moment"));
        let suspect = lanes.take(Isolation::Exclusive, false).now_or_never();
        assert_eq!(
            suspect.and_then(Result::err),
            Some(NotAlone::Suspect),
            "a lane's suspect waits aside at once"
        );
        assert!(is_taken(&lanes, Isolation::None));
        drop(lasting);
        assert!(lanes.take(Isolation::Exclusive, false).await.is_ok());
    }

    #[tokio::test]
    async fn lanes_that_take_turns_go_one_after_another() {
        let permits = Permits::new(ProcessRights::default());
        let first = permits.take(Isolation::None, true).await.unwrap();
        assert!(first.exclusive && !is_taken(&permits, Isolation::None));
        drop(first);
        let _one = permits.take(Isolation::None, false).await.unwrap();
        assert!(is_taken(&permits, Isolation::None));
    }

    #[tokio::test]
    async fn a_batch_that_runs_alone_among_its_lanes_keeps_them_waiting_for_a_while_only() {
        let permits =
            Permits { max_time_alone: Duration::from_millis(100), ..Permits::new(ProcessRights::default()) };
        let _long = permits.take(Isolation::None, true).await.unwrap();
        let beside = tokio::time::timeout(Duration::from_secs(30), permits.take(Isolation::None, true)).await;
        assert!(beside.is_ok_and(|permit| permit.is_ok()), "nobody waits for a handler up to its deadline");
    }
}
