//! Liveness of loops, independent of the servers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Multiple of a step's limit after which a loop counts as stuck.
const STUCK_FACTOR: u32 = 3;

/// The loops of a process. A loop announces the maximum duration of each step, by the step's own limits; one that takes three times as long
/// is stuck, and needs a restart. An unavailable server does not count, as waiting for it has a limit, too.
#[derive(Clone, Debug)]
pub struct Liveness {
    started: Instant,
    loops: Arc<Mutex<Vec<Arc<Loop>>>>,
}

#[derive(Debug)]
struct Loop {
    name: String,
    /// Time of the next required sign of life, in milliseconds since `started`.
    due: AtomicU64,
}

/// The loop waits for work, without a limit.
const IDLE: u64 = u64::MAX;

impl Default for Liveness {
    fn default() -> Self {
        Self { started: Instant::now(), loops: Arc::default() }
    }
}

impl Liveness {
    /// Watches a loop until the returned handle is dropped.
    pub fn watch(&self, name: impl Into<String>) -> LoopBeat {
        let one = Arc::new(Loop { name: name.into(), due: AtomicU64::new(IDLE) });
        self.lock().push(Arc::clone(&one));
        LoopBeat { liveness: self.clone(), own: one }
    }

    /// Returns the names of the loops that are stuck.
    pub fn overdue_loops(&self) -> Vec<String> {
        self.overdue_loops_at(Instant::now())
    }

    fn overdue_loops_at(&self, now: Instant) -> Vec<String> {
        let now = self.millis_since_start(now);
        let loops = self.lock();
        loops.iter().filter(|one| one.due.load(Ordering::Relaxed) < now).map(|one| one.name.clone()).collect()
    }

    fn millis_since_start(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.started).as_millis()).unwrap_or(IDLE)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Loop>>> {
        // Entries are added and removed as a whole.
        self.loops.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Handle by which a loop reports its steps.
#[derive(Debug)]
pub struct LoopBeat {
    liveness: Liveness,
    own: Arc<Loop>,
}

impl LoopBeat {
    /// Announces that a step of the loop begins, with its maximum duration: after three times as long the loop counts as stuck.
    pub fn begin_step(&self, within: Duration) {
        let due = self
            .liveness
            .millis_since_start(Instant::now() + within.saturating_mul(STUCK_FACTOR).min(MAX_STEP_TIME));
        self.own.due.store(due, Ordering::Relaxed);
    }

    /// Announces that the loop waits for work, without a limit.
    pub fn set_idle(&self) {
        self.own.due.store(IDLE, Ordering::Relaxed);
    }
}

/// Upper limit of a step, which keeps the addition to the clock in range.
const MAX_STEP_TIME: Duration = Duration::from_secs(30 * 86_400);

impl Drop for LoopBeat {
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
        assert!(liveness.overdue_loops_at(later(1_000_000)).is_empty(), "both wait for work");
        lane.begin_step(Duration::from_secs(10));
        other.begin_step(Duration::from_secs(100));
        assert!(liveness.overdue_loops_at(later(29)).is_empty());
        assert_eq!(liveness.overdue_loops_at(later(31)), ["lane"]);
        lane.set_idle();
        assert!(liveness.overdue_loops_at(later(31)).is_empty());
        lane.begin_step(Duration::from_secs(10));
        drop(lane);
        assert!(liveness.overdue_loops_at(later(31)).is_empty(), "it has ended");
    }
}
