//! Ends a process with a stalled runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::shutdown::SOFTWARE_ERROR_CODE;
use oncely_config::Problems;

/// Starts a watchdog of the runtime, on a thread of its own: if no task has run for `limit`, the process ends with exit code 70. That is
/// safe at any moment: uncommitted work is rolled back and redelivered.
///
/// A handler that computes or blocks without an `.await` holds a thread of the runtime. When it holds the last one, no heartbeat is sent,
/// no deadline fires and no signal is handled: the process looks alive and does nothing. Only a thread outside the runtime can detect that.
/// Call it inside the runtime. The watchdog ends when the returned handle is dropped: `Worker::run` and `Relay::run` have one.
///
/// # Errors
/// If the thread can't be started.
pub fn start(limit: Duration) -> std::io::Result<Watchdog> {
    let watchdog = Watchdog(Arc::default());
    let is_over = Arc::clone(&watchdog.0);
    let turns = Arc::new(AtomicU64::new(0));
    let pause = (limit / 10).clamp(Duration::from_millis(10), Duration::from_secs(1));
    let counter = Arc::clone(&turns);
    let is_over_in_task = Arc::clone(&watchdog.0);
    tokio::spawn(async move {
        while !is_over_in_task.load(Ordering::Acquire) {
            counter.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(pause).await;
        }
    });
    std::thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
        let mut last = turns.load(Ordering::Relaxed);
        // Counted in its own wake-ups, not by the clock: a process that was stopped and continued has not stalled.
        let mut idle = Duration::ZERO;
        loop {
            std::thread::sleep(pause);
            if is_over.load(Ordering::Acquire) {
                return;
            }
            let now = turns.load(Ordering::Relaxed);
            idle = if now == last { idle + pause } else { Duration::ZERO };
            last = now;
            if idle >= limit {
                tracing::error!(
                    ?limit,
                    "runtime blocked: a handler blocks its threads; exiting, the broker redelivers the messages"
                );
                std::process::exit(i32::from(SOFTWARE_ERROR_CODE));
            }
        }
    })?;
    Ok(watchdog)
}

/// Watches until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Watchdog(Arc<AtomicBool>);

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Starts a watchdog like [`start`], with an error as a problem of `worker.watchdog`.
pub(crate) fn start_or_report(limit: Duration) -> Result<Watchdog, Problems> {
    start(limit).map_err(|error| {
        let mut problems = Problems::default();
        problems.add("worker.watchdog", format!("its thread can't be started: {error}"));
        problems
    })
}
