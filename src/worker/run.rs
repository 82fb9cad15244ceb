//! A worker at work.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::batch::prepare::tenant_of;
use super::builder::Worker;
use super::error::WorkerError;
use super::health::Report;
use super::intake::arrivals::Arrivals;
use super::lane::Lane;
use super::leased;
use super::observe::Observer;
use super::register::register;
use super::settle::settle_copies::settle_copies;
use super::shadow::shadow;
use super::shared::{Common, Precheck, Shared};
use super::subscribe::subscribe;
use crate::backoff::Backoff;
use crate::heartbeat::Heartbeat;
use crate::metrics::{ConsumerMetrics, MirrorMetrics, Server};
use crate::mirror::{DatabaseStatus, EpochWatch, Mirror, MirrorWatch};
use crate::pg::{Pause, Readiness, Secrets, Session, Timelines};
use crate::preflight::{preflight, warn_of_secret_files};
use crate::shutdown::{self, Stopped};
use crate::traces::Traces;
use crate::vitals::{Program, Vitals, unheard};
use crate::watchdog;

/// After `worker.shutdown`: for taking marks back, and for closing. With the default of 25 seconds it ends within the 30 that
/// Kubernetes waits before it kills.
const GIVE_UP: Duration = Duration::from_secs(3);
const CLOSE: Duration = Duration::from_secs(2);

/// How often the counters are logged.
const REPORT: Duration = Duration::from_secs(10);

/// How often the worker looks how it fares.
const LOOK: Duration = Duration::from_secs(1);

impl Worker {
    /// Consumes until `stop` is over (a signal, a token's `cancelled_owned()`, any future); then finishes what has begun, settles it and
    /// returns. Servers that are away are waited for, at the start too.
    ///
    /// # Errors
    /// When the configuration contradicts what the servers hold: a missing queue, schema or function.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<Stopped, WorkerError> {
        let (stop, _waiting) = shutdown::when(stop);
        crate::pg::tell_server_texts(self.config.log.server_errors);
        let _watchdog = watchdog::watch(self.config.worker.watchdog)?;
        let program = Program {
            kind: "worker",
            name: &self.config.worker.name,
            digest: &self.config.digest,
            servers: &Server::ALL,
            listen: self.config.worker.listen,
            setting: "worker.listen",
            tells_systemd: self.tells_systemd,
        };
        let vitals = Vitals::start(program, &stop).await?;
        let Some(vitals) = vitals else { return Ok(unheard(&stop)) };
        let Some((mut session, secrets)) = self.start(&vitals, &stop).await? else {
            return Ok(Stopped::Clean);
        };
        let config = &self.config;
        let mirror = match &config.mirror {
            None => None,
            Some(settings) => Some((Mirror::open(settings)?, settings.precheck)),
        };
        let clock = session.clock.clone();
        let first = DatabaseStatus::ask(&mut session.connection).await.ok();
        if let Some(first) = &first {
            first.set(&clock);
        }
        let session_epoch = session.cell.epoch.clone();
        if first.as_ref().is_some_and(|status| status.may_lose_commits) && !session.synchronous {
            tracing::warn!(
                "PostgreSQL may lose commits that it reported (an asynchronous standby may take over, or commits are not \
                 flushed): messages that were acknowledged just before are lost with them"
            );
        }
        // Before anything is consumed: a pause outlives the process that obeyed it.
        let limit = config.postgres.client_timeout();
        let pauses = match crate::pg::within(limit, crate::pg::pauses(&mut session.connection)).await {
            Ok(pauses) => Some(pauses),
            Err(error) => {
                let error = crate::pg::describe(&error);
                tracing::warn!(error, "pauses could not be read yet: nothing is taken before");
                None
            }
        };
        let retentions = known_retentions(&mut session, limit).await;
        session.close().await;

        let timelines = Timelines::default();
        timelines.admits(&session_epoch);
        let watch = EpochWatch::start(
            first,
            config.postgres.clone(),
            format!("oncely worker {} epoch", config.worker.name),
            clock.clone(),
            timelines.clone(),
            stop.clone(),
        );
        if let Some((mirror, _)) = &mirror {
            mirror.warm_up().await;
        }
        let common =
            Common::new(config.clone(), clock, timelines, &secrets, vitals.liveness.clone(), stop.clone());
        let mut traces = Traces::start("worker", config)?;
        let mut lanes = JoinSet::new();
        let mut subscriptions = JoinSet::new();
        let mut copies = JoinSet::new();
        let mut consumers = Vec::new();
        for consumer in &config.consumers {
            let Some(run) = self.runs.get(consumer.name.as_str()) else {
                continue;
            };
            let precheck = mirror.clone().map(|(mirror, mode)| Precheck {
                mirror,
                mode: consumer.precheck.unwrap_or(mode),
                watch: watch.clone(),
            });
            let metrics = vitals.with_registry(|| ConsumerMetrics::new(consumer));
            let mut shared = Shared::new(&common, consumer, run.clone(), precheck, metrics);
            shared.traces = traces.consumer(config, consumer, run, &common.timelines);
            let shared = Arc::new(shared);
            let retention = retentions.get(consumer.name.as_str()).copied().unwrap_or(consumer.retention);
            shared.counters.metrics.dedupe_horizon.set(retention.as_secs_f64());
            if let Some(pauses) = &pauses {
                let is_of = |pause: &&Pause| pause.consumer == consumer.name.as_str();
                shared.gate.set(pauses.iter().find(is_of).cloned());
            }
            // As much as the broker sends: then sending into it never waits, except after reconnects.
            let capacity = usize::from(consumer.prefetch) * consumer.queues.len();
            let (sender, receiver) = mpsc::channel(capacity.max(1));
            for queue in &consumer.queues {
                subscriptions.spawn(subscribe(Arc::clone(&shared), queue.clone(), sender.clone()));
            }
            if consumer.observes() {
                lanes.spawn(shadow(Arc::clone(&shared), receiver));
                consumers.push(shared);
                continue;
            }
            if let Some(handler) = leased::handler(&shared.run) {
                lanes.spawn(leased::leased(Arc::clone(&shared), handler, receiver));
                copies.spawn(settle_copies(Arc::clone(&shared)));
                consumers.push(shared);
                continue;
            }
            let most = usize::try_from(consumer.batch).unwrap_or(usize::MAX);
            let count = usize::try_from(consumer.lanes).unwrap_or(usize::MAX);
            // A quarter of what deliveries may hold; as much may be unsettled.
            let bytes = usize::try_from(consumer.buffer / 4).unwrap_or(usize::MAX);
            let room = usize::from(consumer.prefetch / 2);
            let mut arrivals = Arrivals::new(receiver, most, capacity, count, (room, bytes));
            if consumer.fair {
                let shared = Arc::clone(&shared);
                arrivals =
                    arrivals.in_turns(capacity, Box::new(move |delivery| tenant_of(&shared, delivery)));
            }
            let arrivals = Arc::new(arrivals);
            for _ in 0..consumer.lanes {
                lanes.spawn(Lane::new(Arc::clone(&shared), Arc::clone(&arrivals)).run());
            }
            copies.spawn(settle_copies(Arc::clone(&shared)));
            consumers.push(shared);
        }

        vitals.report_by({
            let consumers = consumers.clone();
            move || {
                let reports: Vec<Report> = consumers.iter().map(|consumer| consumer.report()).collect();
                serde_json::to_value(reports).unwrap_or_default()
            }
        });
        let observer = Observer {
            vitals: Arc::clone(&vitals),
            consumers: consumers.clone(),
            watch: watch.clone(),
            mirror: mirror.as_ref().map(|(mirror, _)| MirrorWatch::start(mirror.clone(), stop.clone())),
            metrics: vitals.with_registry(MirrorMetrics::new),
        };
        let heartbeat = Heartbeat::start(
            Arc::clone(&vitals),
            &config.postgres,
            &config.cell,
            common.clock.clone(),
            common.timelines.clone(),
            consumers.clone(),
        );
        let mut stopped = Stopped::Clean;
        let mut report = tokio::time::interval(REPORT);
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last: Vec<String> = Vec::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = looks.tick() => observer.look(),
                _ = report.tick() => {
                    let now: Vec<String> = consumers.iter().map(|c| c.counters.now().to_string()).collect();
                    if now != last && !last.is_empty() {
                        log_counters(&consumers);
                    }
                    last = now;
                    consumers.iter().for_each(|consumer| consumer.failures.flush(false));
                }
                // They end only when told to. Whatever a lane held stays unacknowledged as long as its channel lives, so a
                // worker that lost one must not go on quietly.
                Some(ended) = lanes.join_next() => stopped = failed("a lane", ended, stopped, &stop),
                Some(ended) = copies.join_next() => stopped = failed("a task beside the lanes", ended, stopped, &stop),
                Some(ended) = subscriptions.join_next() => stopped = failed("a subscription", ended, stopped, &stop),
            }
        }
        vitals.set_readiness(Readiness::Stopping);
        let mut finish = std::pin::pin!(async {
            let mut all = true;
            while let Some(ended) = lanes.join_next().await {
                all &= ended.is_ok();
            }
            for shared in &consumers {
                shared.unsettled.close();
            }
            while let Some(ended) = copies.join_next().await {
                all &= ended.is_ok();
            }
            all
        });
        let finished = tokio::time::timeout(config.worker.shutdown, finish.as_mut()).await;
        if finished == Ok(false) {
            stopped = Stopped::Failed;
        }
        if finished.is_err() {
            tracing::error!(limit = ?config.worker.shutdown, "not all work was finished in time; its messages come again");
            stopped = Stopped::Deadline;
            // This process does not die of these messages: their marks are taken back.
            common.abandon.cancel();
            if tokio::time::timeout(GIVE_UP, finish).await.is_err() {
                tracing::warn!("PostgreSQL did not answer while work was given up");
            }
        }
        common.done.cancel();
        let close = async { while subscriptions.join_next().await.is_some() {} };
        if tokio::join!(tokio::time::timeout(CLOSE, close), traces.end()).0.is_err() {
            tracing::warn!("the broker did not answer while closing");
        }
        consumers.iter().for_each(|consumer| consumer.failures.flush(true));
        log_counters(&consumers);
        heartbeat.end().await;
        Ok(stopped)
    }

    /// Waits for the servers and looks whether they hold what the configuration says. A session, and the cell's secret.
    /// `None`: told to stop.
    async fn start(
        &self,
        vitals: &Vitals,
        stop: &CancellationToken,
    ) -> Result<Option<(Session, Secrets)>, WorkerError> {
        warn_of_secret_files(&self.config);
        let mut backoff = Backoff::default();
        loop {
            let mut found = preflight(&self.config, true).await;
            found.look_at_mirror(&self.config).await;
            // It has looked at the other servers since this session was opened: PostgreSQL may be gone again.
            let opened = match found.session.take() {
                Some(mut session) if found.problems.is_empty() && found.waits_for().is_empty() => match found
                    .read_secrets(&self.config, &mut session)
                    .await
                {
                    Some(secrets) => register(&self.config, &mut session).await.then_some((session, secrets)),
                    None => None,
                },
                _ => None,
            };
            if !found.problems.is_empty() {
                return Err(found.problems.into());
            }
            match opened {
                Some(opened) => return Ok(Some(opened)),
                None => {
                    vitals.set_readiness(Readiness::Starting(found.log_wait()));
                }
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(None),
                () = tokio::time::sleep(backoff.next()) => {}
            }
        }
    }
}

/// How long keys are remembered, as the database holds it; what can't be read is as configured.
async fn known_retentions(session: &mut Session, limit: Duration) -> BTreeMap<String, Duration> {
    match crate::pg::within(limit, crate::pg::known_consumers(&mut session.connection)).await {
        Ok(known) => known.into_iter().map(|one| (one.consumer, one.retention)).collect(),
        Err(_) => BTreeMap::new(),
    }
}

fn failed(
    what: &str,
    ended: Result<(), tokio::task::JoinError>,
    stopped: Stopped,
    stop: &CancellationToken,
) -> Stopped {
    match ended {
        Ok(()) if stop.is_cancelled() => stopped,
        Ok(()) => {
            tracing::error!(
                "{what} has ended without being told to: the worker stops, its messages come again"
            );
            stop.cancel();
            Stopped::Failed
        }
        Err(error) => {
            tracing::error!(error = %error, "{what} has failed: the worker stops, its messages come again");
            stop.cancel();
            Stopped::Failed
        }
    }
}

fn log_counters(consumers: &[Arc<Shared>]) {
    for shared in consumers {
        tracing::info!(consumer = %shared.consumer.name, "{}", shared.counters.now());
    }
}
