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

/// Maximum number of operations that are kept for their pages; running ones are always kept.
const MAX_KEPT: usize = 50;
/// Maximum number of running operations: each has a session to PostgreSQL of its own.
pub(crate) const MAX_RUNNING: usize = 4;
/// Time to complete the steps in progress when the console stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Operations of this process, the newest first.
#[derive(Default)]
pub(crate) struct Operations {
    operations: Mutex<VecDeque<Arc<Operation>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Operations {
    /// Begins an operation in the background; `None` if [`MAX_RUNNING`] operations are running.
    pub(crate) fn begin(&self, config: &Config, order: Order) -> Option<Arc<Operation>> {
        let operation = Arc::new(Operation::new(order, self.stop.clone()));
        let mut operations = self.lock();
        if operations.iter().filter(|other| !other.has_ended()).count() >= MAX_RUNNING {
            return None;
        }
        operations.push_front(Arc::clone(&operation));
        while operations.len() > MAX_KEPT
            && let Some(oldest) = operations.iter().rposition(|other| other.has_ended())
        {
            operations.remove(oldest);
        }
        drop(operations);
        let run = tokio::spawn(run_operation(config.clone(), Arc::clone(&operation)));
        let task = Arc::clone(&operation);
        self.tasks.spawn(async move {
            let why = match run.await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => exit::format_error_chain(&error),
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

    /// Stops all operations: each completes its step in progress, for up to [`STOP_TIMEOUT`], and leaves its other letters unchanged.
    pub(crate) async fn shut_down(&self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(STOP_TIMEOUT, self.tasks.wait()).await.is_err() {
            tracing::warn!("operation cut off; the next requeue continues with letters in state requeueing");
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Operation>>> {
        // A panic can't leave the list inconsistent.
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run_operation(config: Config, operation: Arc<Operation>) -> anyhow::Result<()> {
    let mut session = open_session(&config).await?;
    let result = operation.run(&config, &mut session).await;
    session.close().await;
    result
}
