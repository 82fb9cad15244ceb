//! Whether Redis answers, for people: asked also where no message comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::client::Mirror;

/// How often Redis is asked.
const INTERVAL: Duration = Duration::from_secs(5);

/// The last answer.
#[derive(Clone)]
pub(crate) struct MirrorWatch {
    mirror: Mirror,
    answers: Arc<AtomicBool>,
}

impl MirrorWatch {
    /// Asks until `stop`. What it hears decides nothing about messages: the breaker has its own experience.
    pub(crate) fn start(mirror: Mirror, stop: CancellationToken) -> Self {
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

    /// Does it answer?
    pub(crate) fn answers(&self) -> bool {
        self.answers.load(Ordering::Relaxed)
    }

    /// Is it left alone, because it did not answer in time?
    pub(crate) fn is_left_alone(&self) -> bool {
        self.mirror.is_left_alone()
    }
}
