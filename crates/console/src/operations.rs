//! Requeues and discards that run in the background.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use oncely_config::Config;
use oncely_ops::exit;
use oncely_ops::letters::{Operation, Order};
use oncely_process::preflight::open_session;

/// Maximum number of kept operations; running ones are always kept.
const REMEMBERED: usize = 50;
/// Maximum number of running operations: each has a session to PostgreSQL of its own.
pub(crate) const MOST_AT_ONCE: usize = 4;
/// Time to complete the steps in progress when the console stops.
const STOP: Duration = Duration::from_secs(30);

/// Operations of this process, the newest first.
#[derive(Default)]
pub(crate) struct Operations {
    known: Mutex<VecDeque<Arc<Operation>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Operations {
    /// Begins an operation; `None` if the maximum is running.
    pub(crate) fn begin(&self, config: &Config, order: Order) -> Option<Arc<Operation>> {
        let operation = Arc::new(Operation::new(order, self.stop.clone()));
        let mut known = self.lock();
        if known.iter().filter(|known| !known.has_ended()).count() >= MOST_AT_ONCE {
            return None;
        }
        known.push_front(Arc::clone(&operation));
        while known.len() > REMEMBERED
            && let Some(oldest) = known.iter().rposition(|known| known.has_ended())
        {
            known.remove(oldest);
        }
        drop(known);
        let work = tokio::spawn(run(config.clone(), Arc::clone(&operation)));
        let task = Arc::clone(&operation);
        self.tasks.spawn(async move {
            let why = match work.await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => exit::error_chain(&error),
                Err(error) => format!("internal error: {error}"),
            };
            tracing::error!(operation = %task.id, "{why}");
            task.break_off(why);
        });
        Some(operation)
    }

    pub(crate) fn get(&self, id: Uuid) -> Option<Arc<Operation>> {
        self.lock().iter().find(|operation| operation.id == id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Operation>> {
        self.lock().iter().cloned().collect()
    }

    /// Stops all operations: each completes its step in progress, within [`STOP`], and leaves its other letters unchanged.
    pub(crate) async fn shut_down(&self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(STOP, self.tasks.wait()).await.is_err() {
            tracing::warn!("operation cut off; the next requeue continues with letters in state requeueing");
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Operation>>> {
        // A panic can't leave the list inconsistent.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run(config: Config, operation: Arc<Operation>) -> anyhow::Result<()> {
    let mut session = open_session(&config).await?;
    let ended = operation.run(&config, &mut session).await;
    session.close().await;
    ended
}
