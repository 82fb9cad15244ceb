//! Builds and runs a relay.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::activity::{LaneReporter, RelayActivity};
use super::event_lane::publish_events;
use super::examine::examine;
use super::mirror_lane::relay_mirror_records;
use super::observe::RelayObserver;
use crate::maintenance;
use oncely_config::{Config, Problems};
use oncely_doctor::{CHECKS, check_mirror};
use oncely_mirror::{Mirror, MirrorWatch};
use oncely_postgres::{DatabaseClock, SessionFactory, Timelines};
use oncely_process::heartbeat::Heartbeat;
use oncely_process::metrics::{DoctorMetrics, GcMetrics, RelayMetrics, Server};
use oncely_process::preflight::{preflight, warn_of_secret_files};
use oncely_process::process::{Attempt, Lifecycle};
use oncely_process::shutdown::StopOutcome;
use oncely_process::vitals::{Program, Vitals};
use oncely_traces::Traces;

/// A relay: brings mirror records to Redis and events to RabbitMQ, and maintains the tables. Several may run.
#[derive(Debug)]
pub struct Relay {
    config: Config,
    tells_systemd: bool,
}

impl Relay {
    /// Creates a relay with this configuration.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, tells_systemd: false }
    }

    /// Notifies systemd, if present, that the relay is ready, of its status, and that its loops make progress (`Type=notify`,
    /// `WatchdogSec`). The program `relay` does this. Needs the feature `cli`.
    #[must_use]
    pub fn tell_systemd(mut self) -> Self {
        self.tells_systemd = true;
        self
    }

    /// Relays until `stop` resolves; a batch that has begun is finished, for up to `worker.shutdown`. Waits for servers that are away.
    ///
    /// # Errors
    /// When the configuration contradicts the servers.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<StopOutcome, Problems> {
        let program = Program {
            kind: "relay",
            name: &self.config.worker.name,
            digest: &self.config.digest,
            servers: &Server::ALL,
            listen: self.config.relay.listen,
            setting: "relay.listen",
            tells_systemd: self.tells_systemd,
        };
        let lifecycle = match Lifecycle::start(program, &self.config.worker, &self.config.log, stop).await? {
            ControlFlow::Continue(lifecycle) => lifecycle,
            ControlFlow::Break(stopped) => return Ok(stopped),
        };
        warn_of_secret_files(&self.config);
        let Some(clock) = lifecycle.until_ready(|| self.open()).await? else {
            return Ok(StopOutcome::Clean);
        };
        let (vitals, stop) = (&lifecycle.vitals, &lifecycle.stop);
        let pulse = Arc::new(RelayActivity::new(vitals.with_registry(|| RelayMetrics::new(&self.config))));
        let traces = Traces::start("relay", &self.config)?;
        let timelines = Timelines::default();
        let mut tasks = self.start(vitals, stop, &pulse, &timelines, &traces)?;
        let heartbeat = Heartbeat::start(
            Arc::clone(vitals),
            &self.config.postgres,
            &self.config.cell,
            clock,
            timelines,
            pulse,
        );
        let stopped = supervise(&mut tasks, stop, self.config.worker.shutdown).await;
        tokio::join!(heartbeat.end(), traces.end());
        Ok(stopped)
    }

    /// Starts the tasks: maintenance, event lanes, the mirror lane, the doctor and the observer of all.
    fn start(
        &self,
        vitals: &Arc<Vitals>,
        stop: &CancellationToken,
        pulse: &Arc<RelayActivity>,
        timelines: &Timelines,
        traces: &Traces,
    ) -> Result<JoinSet<()>, Problems> {
        let mut tasks = JoinSet::new();
        let factory =
            SessionFactory::new(self.config.postgres.clone(), self.config.cell.clone(), timelines.clone());
        tasks.spawn(maintenance::run(
            self.config.clone(),
            factory.clone(),
            maintenance::Signs {
                beat: vitals.liveness.watch("maintenance"),
                metrics: vitals.with_registry(|| GcMetrics::new(&self.config)),
            },
            stop.clone(),
        ));
        let beat = vitals.liveness.watch("counts");
        tasks.spawn(maintenance::run_counts(self.config.clone(), factory.clone(), beat, stop.clone()));
        let mirror = self.config.mirror.as_ref().map(Mirror::open).transpose()?;
        if mirror.is_none() {
            tracing::info!("redis.url is not set: mirror records are dropped");
        }
        for lane in 1..=self.config.events.lanes {
            let beat = vitals.liveness.watch(format!("event lane {lane}"));
            let watched = LaneReporter { pulse: Arc::clone(pulse), beat };
            let traces = traces.events();
            tasks.spawn(publish_events(
                self.config.clone(),
                lane,
                factory.clone(),
                watched,
                traces,
                stop.clone(),
            ));
        }
        let observer = RelayObserver {
            config: self.config.clone(),
            vitals: Arc::clone(vitals),
            pulse: Arc::clone(pulse),
            timelines: timelines.clone(),
            mirror: mirror.clone().map(|mirror| MirrorWatch::start(mirror, stop.clone())),
        };
        tasks.spawn(observer.run(stop.clone()));
        let found = vitals.with_registry(|| DoctorMetrics::new(CHECKS.iter().map(|check| check.id)));
        let examining = examine(self.config.clone(), Arc::clone(vitals), found, stop.clone());
        tasks.spawn(never_to_end_the_relay(AbortOnDropHandle::new(tokio::spawn(examining))));
        let watched =
            LaneReporter { pulse: Arc::clone(pulse), beat: vitals.liveness.watch("the mirror lane") };
        tasks.spawn(relay_mirror_records(self.config.clone(), mirror, factory, watched, stop.clone()));
        Ok(tasks)
    }

    /// Reads the clock of a database that matches the configuration, once the other servers answer, too.
    async fn open(&self) -> Result<Attempt<DatabaseClock>, Problems> {
        let mut found = preflight(&self.config).await;
        check_mirror(&self.config, &mut found).await;
        if !found.problems.is_empty() {
            return Err(found.problems);
        }
        if found.waits_for().is_empty()
            && let Some(session) = found.session.take()
        {
            let clock = session.clock.clone();
            session.close().await;
            return Ok(Attempt::Ready(clock));
        }
        Ok(Attempt::Waits(found.log_wait()))
    }
}

/// Waits for a task that only checks. If it fails, no more checks run until the relay starts again, and the relay goes on.
async fn never_to_end_the_relay(looking: AbortOnDropHandle<()>) {
    if let Err(error) = looking.await {
        tracing::error!(error = %error, "hourly doctor failed; it runs again after a restart of the relay");
    }
}

/// Waits until all tasks have ended, for up to `shutdown` after `stop`. A task that fails stops the others.
async fn supervise(tasks: &mut JoinSet<()>, stop: &CancellationToken, shutdown: Duration) -> StopOutcome {
    let mut stopped = StopOutcome::Clean;
    let overdue = async {
        stop.cancelled().await;
        tokio::time::sleep(shutdown).await;
    };
    tokio::pin!(overdue);
    loop {
        let ended = tokio::select! {
            ended = tasks.join_next() => ended,
            () = &mut overdue => {
                // Work in progress (waiting for a silent server, for example) is rolled back, and taken again.
                tracing::error!(limit = ?shutdown, "shutdown limit reached; unfinished work is rolled back");
                tasks.shutdown().await;
                return StopOutcome::Deadline;
            }
        };
        match ended {
            None => return stopped,
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::error!(error = %error, "a task of the relay failed; stopping the relay");
                stop.cancel();
                stopped = StopOutcome::Failed;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_look_that_panics_does_not_end_the_relay() {
        let mut tasks = JoinSet::new();
        let looking = tokio::spawn(async { std::panic::resume_unwind(Box::new("a check")) });
        tasks.spawn(never_to_end_the_relay(AbortOnDropHandle::new(looking)));
        assert!(tasks.join_next().await.is_some_and(|ended| ended.is_ok()));
    }
}
