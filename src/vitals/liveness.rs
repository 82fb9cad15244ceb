//! Loops that must go round, whatever the servers do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many times longer than it said a loop may take before it counts as stuck.
const PATIENCE: u32 = 3;

/// The loops of a process. A loop says before each step how long that takes at the longest, by the limits that the step has; one that
/// takes three times as long is stuck, and only a new process helps. A server that is away is no reason: waiting for it has a limit, too.
#[derive(Clone, Debug)]
pub(crate) struct Liveness {
    started: Instant,
    loops: Arc<Mutex<Vec<Arc<Loop>>>>,
}

#[derive(Debug)]
struct Loop {
    name: String,
    /// Milliseconds since `started` by which it will have spoken again.
    due: AtomicU64,
}

/// It waits for work, for as long as there is none.
const IDLE: u64 = u64::MAX;

impl Default for Liveness {
    fn default() -> Self {
        Self { started: Instant::now(), loops: Arc::default() }
    }
}

impl Liveness {
    /// Watches a loop until what it gets is dropped.
    pub(crate) fn watch(&self, name: impl Into<String>) -> Beat {
        let one = Arc::new(Loop { name: name.into(), due: AtomicU64::new(IDLE) });
        self.lock().push(Arc::clone(&one));
        Beat { liveness: self.clone(), own: one }
    }

    /// The loops that are stuck.
    pub(crate) fn overdue(&self) -> Vec<String> {
        self.overdue_at(Instant::now())
    }

    fn overdue_at(&self, now: Instant) -> Vec<String> {
        let now = self.since_start(now);
        let loops = self.lock();
        loops.iter().filter(|one| one.due.load(Ordering::Relaxed) < now).map(|one| one.name.clone()).collect()
    }

    fn since_start(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.started).as_millis()).unwrap_or(IDLE)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Loop>>> {
        // Entries come and go whole.
        self.loops.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// By which a loop says that it goes round.
#[derive(Debug)]
pub(crate) struct Beat {
    liveness: Liveness,
    own: Arc<Loop>,
}

impl Beat {
    /// What begins now takes this long at the longest.
    pub(crate) fn expect(&self, within: Duration) {
        let due = self.liveness.since_start(Instant::now() + within.saturating_mul(PATIENCE).min(LONGEST));
        self.own.due.store(due, Ordering::Relaxed);
    }

    /// It waits for work.
    pub(crate) fn idle(&self) {
        self.own.due.store(IDLE, Ordering::Relaxed);
    }
}

/// No step is expected to take longer: a clock can be added to.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);

impl Drop for Beat {
    fn drop(&mut self) {
        self.liveness.lock().retain(|one| !Arc::ptr_eq(one, &self.own));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_is_stuck_that_takes_three_times_as_long_as_it_said() {
        let liveness = Liveness::default();
        let (lane, other) = (liveness.watch("lane"), liveness.watch("other"));
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        assert!(liveness.overdue_at(later(1_000_000)).is_empty(), "both wait for work");
        lane.expect(Duration::from_secs(10));
        other.expect(Duration::from_secs(100));
        assert!(liveness.overdue_at(later(29)).is_empty());
        assert_eq!(liveness.overdue_at(later(31)), ["lane"]);
        lane.idle();
        assert!(liveness.overdue_at(later(31)).is_empty());
        lane.expect(Duration::from_secs(10));
        drop(lane);
        assert!(liveness.overdue_at(later(31)).is_empty(), "it has ended");
    }
}
