//! The doctor's checks, run in the background: they take seconds, which a page may not.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use oncely_config::Config;
use oncely_doctor::{self as doctor, Report};

/// Age of the last run after which a request for the page begins another one.
const OLD: Duration = Duration::from_secs(3_600);
/// Minimum time between the starts of two runs: each opens connections to all servers.
const PAUSE: Duration = Duration::from_secs(10);

/// A completed run.
#[derive(Debug)]
pub(crate) struct FinishedCheckRun {
    pub(crate) at: DateTime<Utc>,
    pub(crate) took: Duration,
    pub(crate) report: Report,
}

/// The current state.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckRunnerStatus {
    pub(crate) is_running: bool,
    pub(crate) last: Option<Arc<FinishedCheckRun>>,
}

#[derive(Debug, Default)]
struct CheckRunnerState {
    seen: CheckRunnerStatus,
    begun: Option<Instant>,
}

/// Runs the checks for all users, one run at a time.
#[derive(Debug, Default)]
pub(crate) struct CheckRunner(Mutex<CheckRunnerState>);

impl CheckRunner {
    /// Returns the current state; begins a run if the last one is too old.
    pub(crate) fn status(self: &Arc<Self>, config: &Config) -> CheckRunnerStatus {
        let is_old = self.lock().begun.is_none_or(|begun| begun.elapsed() >= OLD);
        if is_old {
            self.begin(config);
        }
        self.lock().seen.clone()
    }

    /// Begins a run, unless one is running or has just begun.
    pub(crate) fn begin(self: &Arc<Self>, config: &Config) {
        let mut state = self.lock();
        if state.seen.is_running || state.begun.is_some_and(|begun| begun.elapsed() < PAUSE) {
            return;
        }
        state.seen.is_running = true;
        let begun = Instant::now();
        state.begun = Some(begun);
        drop(state);
        let (checkup, config) = (Arc::clone(self), config.clone());
        tokio::spawn(async move {
            // The next run can begin however this one ends.
            let _ended = CheckRunGuard(&checkup);
            let report = doctor::run(&config).await;
            let done = FinishedCheckRun { at: Utc::now(), took: begun.elapsed(), report };
            checkup.lock().seen.last = Some(Arc::new(done));
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
        self.0.lock().seen.is_running = false;
    }
}
