//! The doctor's checks, run in the background: they take seconds, which a page may not.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use oncely_config::Config;
use oncely_doctor::{self as doctor, Report};

/// Age of the last run after which a request for the page begins another one.
const MAX_AGE: Duration = Duration::from_secs(3_600);
/// Minimum time between the starts of two runs: each opens connections to all servers.
const MIN_PAUSE: Duration = Duration::from_secs(10);

/// A completed run.
#[derive(Debug)]
pub(crate) struct FinishedCheckRun {
    pub(crate) at: DateTime<Utc>,
    pub(crate) duration: Duration,
    pub(crate) report: Report,
}

/// State of the checks: whether a run is in progress, and the last completed one.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckRunnerStatus {
    pub(crate) is_running: bool,
    pub(crate) last: Option<Arc<FinishedCheckRun>>,
}

#[derive(Debug, Default)]
struct CheckRunnerState {
    status: CheckRunnerStatus,
    started_at: Option<Instant>,
}

/// Runs the checks for all users, one run at a time.
#[derive(Debug, Default)]
pub(crate) struct CheckRunner(Mutex<CheckRunnerState>);

impl CheckRunner {
    /// Begins a run if the last one is too old; returns the current status.
    pub(crate) fn refresh(self: &Arc<Self>, config: &Config) -> CheckRunnerStatus {
        let is_old = self.lock().started_at.is_none_or(|at| at.elapsed() >= MAX_AGE);
        if is_old {
            self.begin(config);
        }
        self.lock().status.clone()
    }

    /// Begins a run in the background, unless one is running or has just begun.
    pub(crate) fn begin(self: &Arc<Self>, config: &Config) {
        let mut state = self.lock();
        if state.status.is_running || state.started_at.is_some_and(|at| at.elapsed() < MIN_PAUSE) {
            return;
        }
        state.status.is_running = true;
        let started_at = Instant::now();
        state.started_at = Some(started_at);
        drop(state);
        let (checkup, config) = (Arc::clone(self), config.clone());
        tokio::spawn(async move {
            // The next run can begin however this one ends.
            let _guard = CheckRunGuard(&checkup);
            let report = doctor::run(&config).await;
            let run = FinishedCheckRun { at: Utc::now(), duration: started_at.elapsed(), report };
            checkup.lock().status.last = Some(Arc::new(run));
        });
    }

    fn lock(&self) -> MutexGuard<'_, CheckRunnerState> {
        // A panic can't leave it inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct CheckRunGuard<'a>(&'a CheckRunner);

impl Drop for CheckRunGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().status.is_running = false;
    }
}
