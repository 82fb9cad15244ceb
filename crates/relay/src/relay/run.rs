//! Builds and runs a relay.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::activity::{LaneReporter, RelayActivity};
use super::event_lane::publish_events;
use super::examine::run_doctor;
use super::mirror_lane::relay_mirror_records;
use super::observe::RelayObserver;
use super::waker::{LaneWaker, wake_lanes};
use crate::maintenance;
use oncely_config::{Config, Problems};
use oncely_doctor::{CHECKS, check_mirror};
use oncely_mirror::{Mirror, MirrorWatch};
use oncely_postgres::{DatabaseClock, SessionFactory, Timelines};
use oncely_process::heartbeat::Heartbeat;
use oncely_process::metrics::{DoctorMetrics, GcMetrics, RelayMetrics, Server};
use oncely_process::preflight::{CheckFindings, check_relay_engine, preflight, warn_of_secret_files};
use oncely_process::process::{Attempt, Lifecycle};
use oncely_process::shutdown::StopOutcome;
use oncely_process::vitals::{Program, Vitals};
use oncely_traces::Traces;

/// A relay: brings mirror records to Redis and events to RabbitMQ, and maintains the tables. Several may run.
#[derive(Debug)]
pub struct Relay {
    config: Config,
    notifies_systemd: bool,
}

impl Relay {
    /// Creates a relay with this configuration.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, notifies_systemd: false }
    }

    /// Notifies systemd, if present, that the relay is ready, of its status, and that its loops make progress (`Type=notify`,
    /// `WatchdogSec`). The program `relay` does this. Needs the feature `cli`.
    #[must_use]
    pub fn tell_systemd(mut self) -> Self {
        self.notifies_systemd = true;
        self
    }

    /// Relays until `stop` resolves; a batch that has begun is finished, for up to `worker.shutdown`. Waits for servers that are away.
    ///
    /// # Errors
    /// If the configuration contradicts the servers.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<StopOutcome, Problems> {
        let program = Program {
            kind: "relay",
            name: &self.config.worker.name,
            digest: &self.config.digest,
            servers: &Server::ALL,
            listen: self.config.relay.listen,
            setting: "relay.listen",
            notifies_systemd: self.notifies_systemd,
        };
        let lifecycle = match Lifecycle::start(program, &self.config.worker, &self.config.log, stop).await? {
            ControlFlow::Continue(lifecycle) => lifecycle,
            ControlFlow::Break(stopped) => return Ok(stopped),
        };
        warn_of_secret_files(&self.config);
        let Some(clock) = lifecycle.wait_until_ready(|| self.check_servers()).await? else {
            return Ok(StopOutcome::Clean);
        };
        let (vitals, stop) = (&lifecycle.vitals, &lifecycle.stop);
        let activity =
            Arc::new(RelayActivity::new(vitals.with_registry(|| RelayMetrics::register(&self.config))));
        let traces = Traces::start("relay", &self.config)?;
        let timelines = Timelines::default();
        let mut tasks = self.spawn_tasks(vitals, stop, &activity, &timelines, &traces)?;
        let heartbeat = Heartbeat::start(
            Arc::clone(vitals),
            &self.config.postgres,
            &self.config.cell,
            clock,
            timelines,
            activity,
        );
        let stopped = supervise(&mut tasks, stop, self.config.worker.shutdown).await;
        tokio::join!(heartbeat.end(), traces.end());
        Ok(stopped)
    }

    /// Spawns the tasks of the relay: maintenance, event lanes, the mirror lane, the doctor and the observer.
    ///
    /// # Errors
    /// If the settings of the mirror can't be used.
    fn spawn_tasks(
        &self,
        vitals: &Arc<Vitals>,
        stop: &CancellationToken,
        activity: &Arc<RelayActivity>,
        timelines: &Timelines,
        traces: &Traces,
    ) -> Result<JoinSet<()>, Problems> {
        let mut tasks = JoinSet::new();
        let factory =
            SessionFactory::new(self.config.postgres.clone(), self.config.cell.clone(), timelines.clone());
        tasks.spawn(maintenance::run(
            self.config.clone(),
            factory.clone(),
            maintenance::MaintenanceReporter {
                beat: vitals.liveness.watch("maintenance"),
                metrics: vitals.with_registry(|| GcMetrics::register(&self.config)),
            },
            stop.clone(),
        ));
        let beat = vitals.liveness.watch("counts");
        tasks.spawn(maintenance::run_counts(self.config.clone(), factory.clone(), beat, stop.clone()));
        let mirror = self.config.mirror.as_ref().map(Mirror::open).transpose()?;
        if mirror.is_none() {
            tracing::info!("redis.url is not set: mirror records are dropped");
        }
        let waker = Arc::new(LaneWaker::default());
        for lane in 1..=self.config.events.lanes {
            let beat = vitals.liveness.watch(format!("event lane {lane}"));
            let reporter = LaneReporter { activity: Arc::clone(activity), beat };
            let traces = traces.events();
            tasks.spawn(publish_events(
                self.config.clone(),
                lane,
                factory.clone(),
                reporter,
                traces,
                Arc::clone(&waker),
                stop.clone(),
            ));
        }
        tasks.spawn(wake_lanes(
            waker,
            self.config.postgres.clone(),
            format!("oncely relay {} listener", self.config.worker.name),
            self.config.relay.poll,
            stop.clone(),
        ));
        let observer = RelayObserver {
            config: self.config.clone(),
            vitals: Arc::clone(vitals),
            activity: Arc::clone(activity),
            timelines: timelines.clone(),
            mirror: mirror.clone().map(|mirror| MirrorWatch::start(mirror, stop.clone())),
        };
        tasks.spawn(observer.run(stop.clone()));
        let metrics = vitals.with_registry(|| DoctorMetrics::register(CHECKS.iter().map(|check| check.id)));
        let doctor = run_doctor(self.config.clone(), Arc::clone(vitals), metrics, stop.clone());
        tasks.spawn(wait_for_doctor(AbortOnDropHandle::new(tokio::spawn(doctor))));
        let reporter =
            LaneReporter { activity: Arc::clone(activity), beat: vitals.liveness.watch("the mirror lane") };
        tasks.spawn(relay_mirror_records(self.config.clone(), mirror, factory, reporter, stop.clone()));
        Ok(tasks)
    }

    /// Checks PostgreSQL and the mirror against the configuration. Returns the database's clock, or the conditions to wait for.
    ///
    /// # Errors
    /// If the configuration has to be changed, with the required changes.
    async fn check_servers(&self) -> Result<Attempt<DatabaseClock>, Problems> {
        let mut found = preflight(&self.config).await;
        if let Some(session) = &mut found.session {
            let mut findings = CheckFindings::default();
            check_relay_engine(&self.config, session, &mut findings).await;
            found.add_findings(findings);
        }
        check_mirror(&self.config, &mut found).await;
        if !found.problems.is_empty() {
            return Err(found.problems);
        }
        if found.wait_conditions().is_empty()
            && let Some(session) = found.session.take()
        {
            let clock = session.clock.clone();
            session.close().await;
            return Ok(Attempt::Ready(clock));
        }
        Ok(Attempt::Waits(found.log_wait()))
    }
}

/// Waits for the task of the doctor, and logs its failure: the relay goes on, and no more checks run until it starts again.
async fn wait_for_doctor(task: AbortOnDropHandle<()>) {
    if let Err(error) = task.await {
        tracing::error!(error = %error, "hourly doctor failed; it runs again after a restart of the relay");
    }
}

/// Waits until all tasks have ended, for up to `shutdown` after `stop`. A task that fails stops the others.
async fn supervise(tasks: &mut JoinSet<()>, stop: &CancellationToken, shutdown: Duration) -> StopOutcome {
    let mut outcome = StopOutcome::Clean;
    let deadline = async {
        stop.cancelled().await;
        tokio::time::sleep(shutdown).await;
    };
    tokio::pin!(deadline);
    loop {
        let result = tokio::select! {
            result = tasks.join_next() => result,
            () = &mut deadline => {
                // Work in progress (waiting for a silent server, for example) is rolled back, and taken again.
                tracing::error!(limit = ?shutdown, "shutdown limit reached; unfinished work is rolled back");
                tasks.shutdown().await;
                return StopOutcome::Deadline;
            }
        };
        match result {
            None => return outcome,
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::error!(error = %error, "a task of the relay failed; stopping the relay");
                stop.cancel();
                outcome = StopOutcome::Failed;
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
        tasks.spawn(wait_for_doctor(AbortOnDropHandle::new(looking)));
        assert!(tasks.join_next().await.is_some_and(|ended| ended.is_ok()));
    }
}
