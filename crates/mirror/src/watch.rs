//! Checks whether Redis answers, for status output, also while no message arrives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::client::Mirror;

/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The result of the last check.
#[derive(Clone)]
pub struct MirrorWatch {
    mirror: Mirror,
    is_answering: Arc<AtomicBool>,
}

impl MirrorWatch {
    /// Starts a task that checks until `stop`. The result decides nothing about messages: the breaker counts its own failures.
    pub fn start(mirror: Mirror, stop: CancellationToken) -> Self {
        let watch = Self { mirror, is_answering: Arc::new(AtomicBool::new(true)) };
        let task_watch = watch.clone();
        tokio::spawn(async move {
            while !stop.is_cancelled() {
                task_watch.is_answering.store(task_watch.mirror.ping().await.is_ok(), Ordering::Relaxed);
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = tokio::time::sleep(CHECK_INTERVAL) => {}
                }
            }
        });
        watch
    }

    /// Returns whether Redis answered the last check.
    pub fn is_answering(&self) -> bool {
        self.is_answering.load(Ordering::Relaxed)
    }

    /// Returns whether the mirror is skipped because several look-ups in a row had no answer within their time.
    pub fn is_skipped(&self) -> bool {
        self.mirror.is_skipped()
    }
}
