//! Builds and runs a relay.

use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::event_lane::publish_events;
use super::mirror_lane::relay_mirror_records;
use crate::backoff::Backoff;
use crate::config::{Config, Problems};
use crate::heartbeat::Heartbeat;
use crate::maintenance;
use crate::mirror::Mirror;
use crate::pg::{Door, Timelines};
use crate::preflight::preflight;
use crate::shutdown::{self, Stopped};
use crate::watchdog;

/// A relay: the way of mirror records to Redis, of events to RabbitMQ, and the maintenance of the tables. Several may run.
#[derive(Debug)]
pub struct Relay {
    config: Config,
}

impl Relay {
    /// A relay with this configuration.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config }
    }

    /// Relays until `stop` is over; a batch that has begun is finished, for up to `worker.shutdown`. Servers that are away
    /// are waited for.
    ///
    /// # Errors
    /// When the configuration contradicts what the servers hold.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<Stopped, Problems> {
        let (stop, _waiting) = shutdown::when(stop);
        let _watchdog = watchdog::watch(self.config.worker.watchdog)?;
        if !self.start(&stop).await? {
            return Ok(Stopped::Clean);
        }
        let mut tasks = JoinSet::new();
        let door = Door::new(self.config.postgres.clone(), self.config.cell.clone(), Timelines::default());
        tasks.spawn(maintenance::run(self.config.clone(), door.clone(), stop.clone()));
        let mirror = self.config.mirror.as_ref().map(Mirror::open).transpose()?;
        if mirror.is_none() {
            tracing::info!(
                "no [redis] url: nothing is mirrored, mirror records of workers that have one are dropped"
            );
        }
        for lane in 1..=self.config.events.lanes {
            tasks.spawn(publish_events(self.config.clone(), lane, door.clone(), stop.clone()));
        }
        tasks.spawn(relay_mirror_records(self.config.clone(), mirror, door, stop.clone()));
        let heartbeat = Heartbeat::start("relay", &self.config, || Value::Array(Vec::new()));
        let mut stopped = Stopped::Clean;
        let overdue = async {
            stop.cancelled().await;
            tokio::time::sleep(self.config.worker.shutdown).await;
        };
        tokio::pin!(overdue);
        loop {
            let ended = tokio::select! {
                ended = tasks.join_next() => ended,
                () = &mut overdue => {
                    // Whatever it waits for (a server that went silent, say) is rolled back, and taken again.
                    tracing::error!(limit = ?self.config.worker.shutdown, "not all work was finished in time");
                    tasks.shutdown().await;
                    heartbeat.end().await;
                    return Ok(Stopped::Deadline);
                }
            };
            match ended {
                None => break,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    tracing::error!(error = %error, "a task of the relay has failed: the relay stops");
                    stop.cancel();
                    stopped = Stopped::Failed;
                }
            }
        }
        heartbeat.end().await;
        Ok(stopped)
    }

    async fn start(&self, stop: &CancellationToken) -> Result<bool, Problems> {
        let mut backoff = Backoff::default();
        loop {
            let found = preflight(&self.config, false).await;
            if !found.problems.is_empty() {
                return Err(found.problems);
            }
            if let Some(session) = found.session {
                session.close().await;
                return Ok(true);
            }
            tracing::warn!(servers = found.unreachable.join("; "), "waiting for servers");
            tokio::select! {
                () = stop.cancelled() => return Ok(false),
                () = tokio::time::sleep(backoff.next()) => {}
            }
        }
    }
}
