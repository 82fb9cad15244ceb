//! The doctor's checks, run beside the pages: they take seconds, and a page may not.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use crate::config::Config;
use crate::doctor::{self, Report};

/// Somebody looks at the page, and the last run is older than this: another one begins.
const OLD: Duration = Duration::from_secs(3_600);
/// From one begin to the next, however often somebody asks: each run opens connections to all servers.
const PAUSE: Duration = Duration::from_secs(10);

/// A run that is over.
#[derive(Debug)]
pub(crate) struct Examination {
    pub(crate) at: DateTime<Utc>,
    pub(crate) took: Duration,
    pub(crate) report: Report,
}

/// What is known now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) is_running: bool,
    pub(crate) last: Option<Arc<Examination>>,
}

#[derive(Debug, Default)]
struct State {
    seen: Seen,
    begun: Option<Instant>,
}

/// Runs the checks, one run at a time, for all who look.
#[derive(Debug, Default)]
pub(crate) struct Checkup(Mutex<State>);

impl Checkup {
    /// What is known; begins a run where nothing recent is.
    pub(crate) fn look(self: &Arc<Self>, config: &Config) -> Seen {
        let is_old = self.lock().begun.is_none_or(|begun| begun.elapsed() >= OLD);
        if is_old {
            self.begin(config);
        }
        self.lock().seen.clone()
    }

    /// Begins a run, unless one is under way or has only just begun.
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
            // Whatever ends the run, the next one can begin.
            let _ended = Ended(&checkup);
            let report = doctor::run(&config).await;
            let done = Examination { at: Utc::now(), took: begun.elapsed(), report };
            checkup.lock().seen.last = Some(Arc::new(done));
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Ended<'a>(&'a Checkup);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.lock().seen.is_running = false;
    }
}
