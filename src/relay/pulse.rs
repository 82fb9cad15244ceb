//! How a relay fares: what its lanes have done, and when each last went round.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::heartbeat::{Member, Totals};
use crate::metrics::{RelayMetrics, RelayResult, Target};
use crate::pg::{Pause, RelayStats, Secrets};
use crate::vitals::Beat;
use crate::witnesses::Witnesses;

/// What a lane says of itself by.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) pulse: Arc<Pulse>,
    pub(super) beat: Beat,
}

/// Of one relay.
#[derive(Debug)]
pub(crate) struct Pulse {
    pub(crate) metrics: RelayMetrics,
    /// Of events, by their ids.
    pub(crate) witnesses: Witnesses<Uuid>,
    targets: [TargetPulse; 2],
}

#[derive(Debug, Default)]
struct TargetPulse {
    results: [AtomicI64; 3],
    state: Mutex<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// When a look succeeded last.
    succeeded: Option<Instant>,
    /// Why the last one didn't.
    error: Option<String>,
    /// What waits, and for how many seconds the oldest of it has.
    backlog: i64,
    oldest_age: f64,
}

impl Pulse {
    pub(crate) fn new(metrics: RelayMetrics) -> Self {
        Self { metrics, witnesses: Witnesses::default(), targets: Default::default() }
    }

    /// A look at what waits has succeeded, whether anything was there or not.
    pub(crate) fn succeeded(&self, target: Target) {
        #[allow(clippy::cast_precision_loss)] // below 2^53
        self.metrics.target(target).last_success.set(Utc::now().timestamp_millis() as f64 / 1_000.0);
        let mut state = self.lock(target);
        state.succeeded = Some(Instant::now());
        state.error = None;
    }

    /// A look, or a batch, has failed.
    pub(crate) fn failed(&self, target: Target, error: String) {
        self.lock(target).error = Some(error);
    }

    /// So many records or events had this result.
    pub(crate) fn count(&self, target: Target, result: RelayResult, number: usize) {
        self.metrics.target(target).count(result, u64::try_from(number).unwrap_or(u64::MAX));
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        self.targets[target as usize].results[result as usize].fetch_add(number, Ordering::Relaxed);
    }

    /// A batch was done at this time, and so long it took; the oldest of it was written then.
    pub(crate) fn batch(
        &self,
        target: Target,
        took: Duration,
        oldest: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) {
        let metrics = self.metrics.target(target);
        metrics.duration.record(took);
        if let Some(oldest) = oldest {
            metrics.lag.record((now - oldest).to_std().unwrap_or_default());
        }
    }

    /// So much waits.
    pub(crate) fn waiting(
        &self,
        target: Target,
        records: i64,
        oldest: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) {
        let age = oldest.map_or(0.0, |oldest| (now - oldest).to_std().unwrap_or_default().as_secs_f64());
        let metrics = self.metrics.target(target);
        #[allow(clippy::cast_precision_loss)] // ten thousand at most
        metrics.backlog.set(records as f64);
        metrics.oldest_age.set(age);
        let mut state = self.lock(target);
        state.backlog = records;
        state.oldest_age = age;
    }

    /// Why what should go to a target does not, where no look has succeeded for so long.
    pub(crate) fn stuck(&self, target: Target, limit: Duration) -> Option<String> {
        let state = self.lock(target);
        if state.succeeded.is_some_and(|at| at.elapsed() < limit) {
            return None;
        }
        let error = state.error.as_deref().unwrap_or("no look has succeeded yet");
        Some(format!("nothing goes to {}: {error}", target.as_str()))
    }

    fn lock(&self, target: Target) -> MutexGuard<'_, State> {
        // Every change is an assignment of a whole field.
        self.targets[target as usize].state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn totals(&self, target: Target) -> RelayStats {
        let state = self.lock(target).clone();
        let [relayed, failed, parked] = [RelayResult::Done, RelayResult::Failed, RelayResult::Parked]
            .map(|result| self.targets[target as usize].results[result as usize].load(Ordering::Relaxed));
        RelayStats {
            target: target.as_str().to_owned(),
            at: DateTime::UNIX_EPOCH,
            relayed,
            failed,
            parked,
            records: state.backlog,
            oldest_age: state.oldest_age,
        }
    }
}

impl Member for Arc<Pulse> {
    // A relay has no consumers, and no right to read who is paused.
    const OBEYS: bool = false;

    fn obey(&self, _: Vec<Pause>) {}

    // The mirror's lane asks for what it needs.
    fn learn(&self, _: &Secrets) {}

    fn totals(&self) -> Option<Totals> {
        Some(Totals::Relay(Target::ALL.map(|target| Pulse::totals(self, target)).to_vec()))
    }
}
