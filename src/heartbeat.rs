//! Says every few seconds that this process lives, and how its consumers fare, in a row of `oncely.processes`.

use std::time::Duration;

use serde_json::Value;
use sqlx::PgConnection;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use crate::config::{Config, host};
use crate::pg::{self, PgSettings, Process, Readiness};

/// How often. Whoever reads takes three times this for silence.
const INTERVAL: Duration = Duration::from_secs(5);
/// A server that takes longer than this for one small row is as good as away.
const LIMIT: Duration = Duration::from_secs(4);

/// The heartbeat of a process. On a connection of its own, outside of every transaction that does work: it waits for nobody, and nobody
/// for it. Where it can't be written, that is logged and nothing else happens. Dropped, it ends without a word, like the process.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    stop: DropGuard,
    task: JoinHandle<()>,
}

impl Heartbeat {
    /// Starts it. `counters` is asked each time how the consumers fare.
    pub(crate) fn start(
        kind: &'static str,
        config: &Config,
        counters: impl Fn() -> Value + Send + 'static,
    ) -> Self {
        let process = Process {
            id: Uuid::now_v7(),
            kind,
            name: config.worker.name.clone(),
            host: host().unwrap_or_default(),
            config_digest: config.digest.clone(),
        };
        let heart = Heart {
            application: format!("oncely {kind} {} heartbeat", process.name),
            settings: config.postgres.clone(),
            cell: config.cell.clone(),
            process,
            connection: None,
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(heart.run(counters, stop.clone()));
        Self { stop: stop.drop_guard(), task }
    }

    /// The process ends in peace: its row goes. A server that does not answer is not waited for long.
    pub(crate) async fn end(self) {
        drop(self.stop);
        if tokio::time::timeout(LIMIT, self.task).await.is_err() {
            tracing::debug!("the last heartbeat was not answered");
        }
    }
}

struct Heart {
    process: Process,
    settings: PgSettings,
    cell: String,
    application: String,
    connection: Option<PgConnection>,
}

impl Heart {
    async fn run(mut self, counters: impl Fn() -> Value, stop: CancellationToken) {
        let mut failing = false;
        while !stop.is_cancelled() {
            // With its connection: it is taken out, and comes back only with an answer.
            let beaten = pg::within(LIMIT, self.beat(&counters())).await;
            match &beaten {
                Err(error) if !failing => {
                    tracing::warn!(
                        error = pg::describe(error),
                        "the heartbeat can't be written; tried again"
                    );
                }
                Err(error) => tracing::debug!(error = pg::describe(error), "the heartbeat can't be written"),
                Ok(()) => {}
            }
            failing = beaten.is_err();
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
        if let Some(mut connection) = self.connection.take()
            && let Err(error) = pg::within(LIMIT / 2, pg::leave(&mut connection, self.process.id)).await
        {
            tracing::debug!(
                error = pg::describe(&error),
                "the row of this process stays until it is collected"
            );
        }
    }

    async fn beat(&mut self, consumers: &Value) -> Result<(), sqlx::Error> {
        let mut connection = match self.connection.take() {
            Some(open) => open,
            None => pg::open_for_heartbeats(&self.settings, &self.application, &self.cell).await?,
        };
        pg::beat(&mut connection, &self.process, &Readiness::Ready, consumers).await?;
        self.connection = Some(connection);
        Ok(())
    }
}
