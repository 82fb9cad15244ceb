//! `Type=notify` and `WatchdogSec` of systemd: readiness, status, and liveness of the loops.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sd_notify::NotifyState;

use super::Vitals;
use oncely_postgres::Readiness;

/// Interval of notifications. `WatchdogSec` must be longer.
const NOTIFY_INTERVAL: Duration = Duration::from_secs(1);

/// Spawns a task that notifies systemd every second, and of each change, until the runtime ends. A process counts as ready when its
/// configuration is accepted, also while it waits for its servers: otherwise its start would time out and be repeated while a server is
/// unavailable.
pub(super) fn spawn_notifier(vitals: Arc<Vitals>) {
    tokio::spawn(async move {
        let mut turns = tokio::time::interval(NOTIFY_INTERVAL);
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut is_up, mut is_stopping) = (false, false);
        loop {
            tokio::select! {
                _ = turns.tick() => {}
                () = vitals.changed.notified() => {}
            }
            let readiness = vitals.readiness();
            let status = match readiness.reason() {
                Some(reason) => format!("{}: {reason}", readiness.state()),
                None => readiness.state().to_owned(),
            };
            let mut states = vec![NotifyState::Status(&status)];
            if !is_up && vitals.is_up.load(Ordering::Acquire) {
                is_up = true;
                states.push(NotifyState::Ready);
            }
            if !is_stopping && readiness == Readiness::Stopping {
                is_stopping = true;
                states.push(NotifyState::Stopping);
            }
            if vitals.liveness.overdue_loops().is_empty() {
                states.push(NotifyState::Watchdog);
            }
            // Without NOTIFY_SOCKET nothing is sent.
            if let Err(error) = sd_notify::notify(&states) {
                tracing::debug!(%error, "systemd was not told");
            }
        }
    });
}
