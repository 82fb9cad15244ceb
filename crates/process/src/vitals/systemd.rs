//! `Type=notify` and `WatchdogSec` of systemd: readiness, status, and liveness of the loops.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sd_notify::NotifyState;

use super::Vitals;
use oncely_postgres::Readiness;

/// Interval of notifications. `WatchdogSec` must be longer.
const INTERVAL: Duration = Duration::from_secs(1);

/// Notifies systemd every second, and of each change, until the runtime ends. A process counts as ready when its configuration is accepted,
/// also while it waits for its servers: otherwise its start would time out and be repeated while a server is unavailable.
pub(super) fn notify_systemd(vitals: Arc<Vitals>) {
    tokio::spawn(async move {
        let mut turns = tokio::time::interval(INTERVAL);
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut is_up, mut is_stopping) = (false, false);
        loop {
            tokio::select! {
                _ = turns.tick() => {}
                () = vitals.said.notified() => {}
            }
            let readiness = vitals.readiness();
            let status = match readiness.reason() {
                Some(reason) => format!("{}: {reason}", readiness.state()),
                None => readiness.state().to_owned(),
            };
            let mut said = vec![NotifyState::Status(&status)];
            if !is_up && vitals.is_up.load(Ordering::Acquire) {
                is_up = true;
                said.push(NotifyState::Ready);
            }
            if !is_stopping && readiness == Readiness::Stopping {
                is_stopping = true;
                said.push(NotifyState::Stopping);
            }
            if vitals.liveness.overdue().is_empty() {
                said.push(NotifyState::Watchdog);
            }
            // Without NOTIFY_SOCKET nothing is sent.
            if let Err(error) = sd_notify::notify(&said) {
                tracing::debug!(%error, "systemd was not told");
            }
        }
    });
}
