//! Checks whether Redis answers, for status output, also while no message arrives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::client::Mirror;

/// Time between two checks.
const INTERVAL: Duration = Duration::from_secs(5);

/// The result of the last check.
#[derive(Clone)]
pub struct MirrorWatch {
    mirror: Mirror,
    answers: Arc<AtomicBool>,
}

impl MirrorWatch {
    /// Checks until `stop`. The result decides nothing about messages: the breaker counts its own failures.
    pub fn start(mirror: Mirror, stop: CancellationToken) -> Self {
        let watch = Self { mirror, answers: Arc::new(AtomicBool::new(true)) };
        let asking = watch.clone();
        tokio::spawn(async move {
            while !stop.is_cancelled() {
                asking.answers.store(asking.mirror.ping().await.is_ok(), Ordering::Relaxed);
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = tokio::time::sleep(INTERVAL) => {}
                }
            }
        });
        watch
    }

    /// Returns whether Redis answered the last check.
    pub fn answers(&self) -> bool {
        self.answers.load(Ordering::Relaxed)
    }

    /// Returns whether the mirror is skipped because it did not answer in time.
    pub fn is_skipped(&self) -> bool {
        self.mirror.is_skipped()
    }
}
