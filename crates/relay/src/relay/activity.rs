//! State of a relay: results of its lanes, and the time of each one's last round.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use oncely_postgres::{Pause, RelayStats, Secrets};
use oncely_process::heartbeat::{Member, Totals};
use oncely_process::metrics::{RelayMetrics, RelayResult, Target};
use oncely_process::vitals::LoopBeat;
use oncely_process::witnesses::Witnesses;

/// Reporting handles of a lane.
#[derive(Debug)]
pub(super) struct LaneReporter {
    pub(super) activity: Arc<RelayActivity>,
    pub(super) beat: LoopBeat,
}

/// State of one relay.
#[derive(Debug)]
pub(crate) struct RelayActivity {
    pub(crate) metrics: RelayMetrics,
    /// Witnesses of events, by event id.
    pub(crate) witnesses: Witnesses<Uuid>,
    targets: [TargetActivity; 2],
}

#[derive(Debug, Default)]
struct TargetActivity {
    results: [AtomicI64; 3],
    state: Mutex<TargetState>,
}

#[derive(Clone, Debug, Default)]
struct TargetState {
    /// Time at which a read succeeded last.
    last_success: Option<Instant>,
    /// Error of the last read, if it failed.
    error: Option<String>,
    /// Number of waiting records or events, and the age of the oldest in seconds.
    backlog: i64,
    oldest_age: f64,
}

impl RelayActivity {
    pub(crate) fn new(metrics: RelayMetrics) -> Self {
        Self { metrics, witnesses: Witnesses::default(), targets: Default::default() }
    }

    /// Records that a read has succeeded, whether it found anything or not.
    pub(crate) fn record_success(&self, target: Target) {
        #[allow(clippy::cast_precision_loss)] // below 2^53
        self.metrics.target(target).last_success.set(Utc::now().timestamp_millis() as f64 / 1_000.0);
        let mut state = self.lock(target);
        state.last_success = Some(Instant::now());
        state.error = None;
    }

    /// Records that a read or a batch has failed.
    pub(crate) fn record_failure(&self, target: Target, error: String) {
        self.lock(target).error = Some(error);
    }

    /// Counts records or events with this result, in the metrics and for the statistics.
    pub(crate) fn count_results(&self, target: Target, result: RelayResult, number: usize) {
        self.metrics.target(target).count(result, u64::try_from(number).unwrap_or(u64::MAX));
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        self.targets[target as usize].results[result as usize].fetch_add(number, Ordering::Relaxed);
    }

    /// Records the duration of a batch, and the lag of its oldest record at the time `now`.
    pub(crate) fn record_batch(
        &self,
        target: Target,
        duration: Duration,
        oldest: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) {
        let metrics = self.metrics.target(target);
        metrics.duration.record(duration);
        if let Some(oldest) = oldest {
            metrics.lag.record((now - oldest).to_std().unwrap_or_default());
        }
    }

    /// Sets the number of waiting records or events of a target, and the age of the oldest one at the time `now`.
    pub(crate) fn set_backlog(
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

    /// Describes why nothing goes to a target; `None` if a read has succeeded within `limit`.
    pub(crate) fn describe_stall(&self, target: Target, limit: Duration) -> Option<String> {
        let state = self.lock(target);
        if state.last_success.is_some_and(|at| at.elapsed() < limit) {
            return None;
        }
        let error = state.error.as_deref().unwrap_or("no look has succeeded yet");
        Some(format!("nothing goes to {}: {error}", target.as_str()))
    }

    fn lock(&self, target: Target) -> MutexGuard<'_, TargetState> {
        // Every change is an assignment of a whole field.
        self.targets[target as usize].state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the statistics of a target since the start of the relay; their time is not set.
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

impl Member for RelayActivity {
    // A relay has no consumers, and no right to read pauses.
    const OBEYS_PAUSES: bool = false;

    fn set_pauses(&self, _: Vec<Pause>) {}

    // The mirror's lane reads the keys that it needs.
    fn set_secrets(&self, _: &Secrets) {}

    fn totals(&self) -> Option<Totals> {
        Some(Totals::Relay(Target::ALL.map(|target| RelayActivity::totals(self, target)).to_vec()))
    }
}
