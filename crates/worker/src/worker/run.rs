//! A worker from its start to its end.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinError;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::builder::Worker;
use super::error::WorkerError;
use super::heartbeat::WorkerMember;
use super::nodes::ClusterNodes;
use super::observe::WorkerObserver;
use super::register::register;
use super::shared::{ConsumerContext, Precheck, ProcessContext};
use super::tasks::Tasks;
use oncely_config::{Config, ConsumerSettings};
use oncely_doctor::{check_mirror, preflight_worker};
use oncely_handler::ConsumerHandler;
use oncely_mirror::{DatabaseStatus, EpochWatch, Mirror};
use oncely_postgres::{self as pg, DatabaseClock, Pause, Readiness, Secrets, Session, Timelines};
use oncely_process::heartbeat::Heartbeat;
use oncely_process::metrics::{ConsumerMetrics, Server};
use oncely_process::preflight::warn_of_secret_files;
use oncely_process::process::{Attempt, Lifecycle};
use oncely_process::shutdown::StopOutcome;
use oncely_process::vitals::Program;
use oncely_traces::Traces;

/// Time after `worker.shutdown` for clearing crash marks. With two more seconds for closing and the default of 25 it ends within the 30
/// that Kubernetes waits before it kills.
const MARKS_CLEAR_TIME: Duration = Duration::from_secs(3);

/// Interval at which the counters are logged.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Interval at which gauges and readiness are set.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(1);

/// Session of the start, and the secrets that the database holds.
type StartSession = (Session, Secrets);

/// State of the database that is read once, before anything is consumed.
struct InitialState {
    /// `None` if the database could not be queried.
    status: Option<DatabaseStatus>,
    clock: DatabaseClock,
    timelines: Timelines,
    /// A pause outlives the process that obeyed it. `None` if they could not be read: no message is taken before they are.
    pauses: Option<Vec<Pause>>,
    retentions: BTreeMap<String, Duration>,
}

/// Creates a consumer's access to the mirror; `None` without a mirror.
fn configure_precheck(
    config: &Config,
    consumer: &ConsumerSettings,
    mirror: Option<&Mirror>,
    watch: &EpochWatch,
) -> Option<Precheck> {
    let mode = consumer.precheck.unwrap_or(config.mirror.as_ref()?.precheck);
    Some(Precheck { mirror: mirror?.clone(), mode, watch: watch.clone() })
}

impl Worker {
    /// Consumes until `stop` resolves (a signal, a token's `cancelled_owned()`, any future); then finishes the work that has begun, for up
    /// to `worker.shutdown`, settles it and returns. Waits for servers that are away, at the start too.
    ///
    /// # Errors
    /// If the configuration contradicts the servers: a missing queue, schema or function.
    pub async fn run(
        self,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<StopOutcome, WorkerError> {
        let config = &self.config;
        let program = Program {
            kind: "worker",
            name: &config.worker.name,
            digest: &config.digest,
            servers: &Server::ALL,
            listen: config.worker.listen,
            setting: "worker.listen",
            notifies_systemd: self.notifies_systemd,
        };
        let lifecycle = match Lifecycle::start(program, &config.worker, &config.log, stop).await? {
            ControlFlow::Continue(lifecycle) => lifecycle,
            ControlFlow::Break(stopped) => return Ok(stopped),
        };
        warn_of_secret_files(config);
        let Some((session, secrets)) = lifecycle.wait_until_ready(|| self.open()).await? else {
            return Ok(StopOutcome::Clean);
        };
        let (vitals, stop) = (&lifecycle.vitals, &lifecycle.stop);
        let mirror = config.mirror.as_ref().map(Mirror::open).transpose()?;
        let mut initial = InitialState::read(session, config.postgres.client_timeout()).await;
        let watch = initial.watch_epoch(config, stop);
        if let Some(mirror) = &mirror {
            mirror.warm_up().await;
        }
        let common = ProcessContext::new(
            config.clone(),
            initial.clock.clone(),
            initial.timelines.clone(),
            &secrets,
            vitals.liveness.clone(),
            stop.clone(),
        );
        let mut traces = Traces::start("worker", config)?;
        let nodes = config.postgres.citus.is_some().then(|| {
            let mode = config.mirror.as_ref().map(|mirror| mirror.precheck);
            let (settings, worker) = (config.postgres.clone(), config.worker.name.clone());
            Arc::new(ClusterNodes::new(settings, common.clock.clone(), worker, mode, stop.clone()))
        });
        let mut tasks = Tasks::default();
        for (consumer, handler) in self.consumers_with_handler() {
            let precheck = configure_precheck(config, consumer, mirror.as_ref(), &watch)
                .map(|precheck| if nodes.is_some() { precheck.for_forwarded() } else { precheck });
            let metrics = vitals.with_registry(|| ConsumerMetrics::register(consumer));
            let mut shared = ConsumerContext::new(&common, consumer, handler.clone(), precheck, metrics);
            shared.traces = traces.start_consumer(config, consumer, handler, &common.timelines);
            initial.apply_to(&shared);
            tasks.start(Arc::new(shared), nodes.as_ref());
        }
        let observer = WorkerObserver::start(vitals, tasks.consumers.clone(), watch, nodes, mirror, stop);
        let (clock, timelines) = (common.clock.clone(), common.timelines.clone());
        let reporting = WorkerMember(tasks.consumers.clone());
        let heartbeat =
            Heartbeat::start(Arc::clone(vitals), &config.postgres, &config.cell, clock, timelines, reporting);
        let is_clean = supervise(&mut tasks, &observer, stop).await;
        vitals.set_readiness(Readiness::Stopping);
        let outcome = finish(&mut tasks, &common, config.worker.shutdown).await;
        common.done.cancel();
        tokio::join!(tasks.close(), traces.end());
        tasks.consumers.iter().for_each(|consumer| consumer.failures.flush(true));
        log_counters(&tasks.consumers);
        heartbeat.end().await;
        Ok(match outcome {
            StopOutcome::Clean if !is_clean => StopOutcome::Failed,
            outcome => outcome,
        })
    }

    /// Returns the consumers that have a handler, each with it.
    fn consumers_with_handler(&self) -> impl Iterator<Item = (&ConsumerSettings, &ConsumerHandler)> {
        let handler_of = |consumer: &ConsumerSettings| self.handlers.get(consumer.name.as_str());
        self.config.consumers.iter().filter_map(move |consumer| Some((consumer, handler_of(consumer)?)))
    }

    /// Opens a session once all servers answer and hold the objects that the configuration names.
    async fn open(&self) -> Result<Attempt<StartSession>, WorkerError> {
        let mut found = preflight_worker(&self.config).await;
        check_mirror(&self.config, &mut found).await;
        // It has looked at the other servers since this session was opened: PostgreSQL may be gone again.
        let mut opened = None;
        if found.problems.is_empty()
            && found.wait_conditions().is_empty()
            && let Some(mut session) = found.session.take()
            && let Some(secrets) = found.read_secrets(&self.config, &mut session).await
            && register(&self.config, &mut session).await
        {
            opened = Some((session, secrets));
        }
        if !found.problems.is_empty() {
            return Err(found.problems.into());
        }
        Ok(opened.map_or_else(|| Attempt::Waits(found.log_wait()), Attempt::Ready))
    }
}

impl InitialState {
    /// Starts to watch the database's epoch, from this state on.
    fn watch_epoch(&mut self, config: &Config, stop: &CancellationToken) -> EpochWatch {
        EpochWatch::start(
            self.status.take(),
            config.postgres.clone(),
            format!("oncely worker {} epoch", config.worker.name),
            self.clock.clone(),
            self.timelines.clone(),
            stop.clone(),
        )
    }

    /// Reads the initial state, and closes the session. Values that can't be read within `limit` are learned later.
    async fn read(mut session: Session, limit: Duration) -> Self {
        let clock = session.clock.clone();
        let status = DatabaseStatus::read(&mut session.connection).await.ok();
        if let Some(status) = &status {
            status.set_clock(&clock);
        }
        if status.as_ref().is_some_and(|status| status.may_lose_commits) && !session.synchronous {
            tracing::warn!(
                "PostgreSQL may lose commits that it reported (an asynchronous standby may take over, or commits are not \
                 flushed), and with them the effects of messages that are already acknowledged"
            );
        }
        let pauses = match pg::wait_for_answer(limit, pg::list_pauses(&mut session.connection)).await {
            Ok(pauses) => Some(pauses),
            Err(error) => {
                let error = pg::describe(&error);
                tracing::warn!(error, "cannot read pauses yet; not consuming until then");
                None
            }
        };
        let retentions = match pg::wait_for_answer(limit, pg::list_consumers(&mut session.connection)).await {
            Ok(consumers) => consumers.into_iter().map(|one| (one.consumer, one.retention)).collect(),
            Err(_) => BTreeMap::new(),
        };
        let timelines = Timelines::default();
        timelines.record_epoch(&session.cell.epoch);
        session.close().await;
        Self { status, clock, timelines, pauses, retentions }
    }

    /// Sets a consumer's pause, and its metric of the retention: the one in the database, else the configured one.
    fn apply_to(&self, shared: &ConsumerContext) {
        let name = shared.consumer.name.as_str();
        let retention = self.retentions.get(name).copied().unwrap_or(shared.consumer.retention);
        shared.counters.metrics.dedupe_horizon.set(retention.as_secs_f64());
        if let Some(pauses) = &self.pauses {
            shared.gate.set_pause(pauses.iter().find(|pause| pause.consumer == name).cloned());
        }
    }
}

/// Watches over the tasks until the worker stops, which it does if a task ends by itself; sets gauges and logs counters meanwhile. Returns
/// whether no task ended by itself.
async fn supervise(tasks: &mut Tasks, observer: &WorkerObserver, stop: &CancellationToken) -> bool {
    let mut report_ticks = tokio::time::interval(REPORT_INTERVAL);
    let mut observe_ticks = tokio::time::interval(OBSERVE_INTERVAL);
    observe_ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_counts: Vec<String> = Vec::new();
    let mut is_clean = true;
    loop {
        tokio::select! {
            () = stop.cancelled() => return is_clean,
            _ = observe_ticks.tick() => observer.observe(),
            _ = report_ticks.tick() => {
                let consumers = &tasks.consumers;
                let counts: Vec<String> = consumers.iter().map(|c| c.counters.snapshot().to_string()).collect();
                if counts != last_counts && !last_counts.is_empty() {
                    log_counters(consumers);
                }
                last_counts = counts;
                consumers.iter().for_each(|consumer| consumer.failures.flush(false));
            }
            (task, result) = tasks.wait_for_task_end() => is_clean &= check_task_end(task, result, stop),
        }
    }
}

/// Returns whether a task has ended because the worker stops; otherwise logs its end, and stops the worker.
fn check_task_end(task: &str, result: Result<(), JoinError>, stop: &CancellationToken) -> bool {
    match result {
        Ok(()) if stop.is_cancelled() => return true,
        Ok(()) => {
            tracing::error!("{task} ended unexpectedly; stopping the worker, its messages are redelivered");
        }
        Err(error) => {
            tracing::error!(error = %error, "{task} failed; stopping the worker, its messages are redelivered");
        }
    }
    stop.cancel();
    false
}

/// Waits up to `limit` for all work that has begun; then abandons unfinished work, and waits up to [`MARKS_CLEAR_TIME`] for its crash marks
/// to be taken back.
async fn finish(tasks: &mut Tasks, common: &ProcessContext, limit: Duration) -> StopOutcome {
    let mut finish = std::pin::pin!(tasks.finish());
    match tokio::time::timeout(limit, finish.as_mut()).await {
        Ok(true) => StopOutcome::Clean,
        Ok(false) => StopOutcome::Failed,
        Err(_) => {
            tracing::error!(?limit, "shutdown limit reached; unfinished messages are redelivered");
            // These messages have not crashed the process: their marks are taken back.
            common.abandon.cancel();
            if tokio::time::timeout(MARKS_CLEAR_TIME, finish).await.is_err() {
                tracing::warn!("no answer from PostgreSQL during the shutdown");
            }
            StopOutcome::Deadline
        }
    }
}

/// Logs the counters of each consumer.
fn log_counters(consumers: &[Arc<ConsumerContext>]) {
    for shared in consumers {
        tracing::info!(consumer = %shared.consumer.name, "{}", shared.counters.snapshot());
    }
}
