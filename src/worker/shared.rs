//! What the lanes and subscriptions of one consumer share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::counters::Counters;
use super::failure_log::FailureLog;
use super::health::{Condition, Contended, Health, Report};
use super::intake::gate::Gate;
use super::isolation::contention::Contention;
use super::isolation::permit::{Permits, Process};
use super::journal::Journal;
use super::keys::Keys;
use super::leased;
use super::progress::Progress;
use super::settle::unsettled::Unsettled;
use crate::amqp::{Budget, Publisher};
use crate::config::{Config, Consumer, RabbitSettings};
use crate::decide::PrecheckMode;
use crate::encryption::{Cipher, Sealer};
use crate::handler::Run;
use crate::metrics::{ConsumerMetrics, Stage};
use crate::mirror::{EpochWatch, Mirror};
use crate::pg::{self, Backend, Clock, Door, NoSession, PgSettings, Quota, Secrets, Session, Timelines};
use crate::traces::{BatchTrace, ConsumerTraces};
use crate::vitals::Liveness;

/// A consumer at work.
pub(crate) struct Shared {
    pub(crate) consumer: Consumer,
    pub(crate) run: Run,
    pub(crate) worker: String,
    /// The way to sessions.
    pub(crate) door: Door,
    pub(crate) postgres: PgSettings,
    pub(crate) rabbitmq: RabbitSettings,
    pub(crate) clock: Clock,
    pub(crate) precheck: Option<Precheck>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) list_duplicates: bool,
    /// Largest body that a dead letter's row holds.
    pub(crate) stored_body: usize,
    /// What encrypts that body, where something does.
    pub(crate) cipher: Option<Arc<dyn Cipher>>,
    /// How much of a tenant's letters is stored, where no operator has said otherwise.
    pub(crate) letter_quota: Quota,
    pub(crate) publisher: Publisher,
    /// What the lanes can't settle at once.
    pub(crate) unsettled: Unsettled,
    /// What deliveries may hold.
    pub(crate) budget: Budget,
    pub(crate) counters: Counters,
    pub(crate) traces: ConsumerTraces,
    pub(crate) health: Health,
    pub(crate) failures: FailureLog,
    pub(crate) permits: Permits,
    /// Whether its transactions collide.
    pub(crate) contention: Contention,
    pub(crate) progress: Progress,
    /// Closed while somebody has paused the consumer.
    pub(crate) gate: Gate,
    pub(crate) liveness: Liveness,
    /// How long what has begun may take after the worker was told to stop.
    pub(crate) shutdown: Duration,
    pub(crate) journal: Journal,
    /// No new work.
    pub(crate) stop: CancellationToken,
    /// What is not finished now is left to redelivery.
    pub(crate) abandon: CancellationToken,
    /// All work is done: connections may close.
    pub(crate) done: CancellationToken,
}

/// How the mirror is asked.
pub(crate) struct Precheck {
    pub(crate) mirror: Mirror,
    pub(crate) mode: PrecheckMode,
    pub(crate) watch: EpochWatch,
}

/// What the consumers of a process have in common.
pub(crate) struct Common {
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) timelines: Timelines,
    keys: Arc<Keys>,
    process: Process,
    liveness: Liveness,
    stop: CancellationToken,
    pub(crate) abandon: CancellationToken,
    pub(crate) done: CancellationToken,
}

impl Common {
    pub(crate) fn new(
        config: Config,
        clock: Clock,
        timelines: Timelines,
        secrets: &Secrets,
        liveness: Liveness,
        stop: CancellationToken,
    ) -> Self {
        Self {
            keys: Arc::new(Keys::new(&config, secrets)),
            config,
            clock,
            timelines,
            process: Process::default(),
            liveness,
            stop,
            abandon: CancellationToken::new(),
            done: CancellationToken::new(),
        }
    }

    /// Of a process without a broker, at a session's database. It waits for nothing, like one that was told to stop.
    pub(crate) fn without_broker(config: Config, session: &Session, secrets: &Secrets) -> Self {
        let timelines = Timelines::default();
        timelines.admits(&session.cell.epoch);
        let stop = CancellationToken::new();
        stop.cancel();
        Self::new(config, session.clock.clone(), timelines, secrets, Liveness::default(), stop)
    }
}

impl Shared {
    /// What encrypts that the consumer's handler returns, where it is to be encrypted.
    pub(crate) fn sealer(&self) -> Sealer {
        Sealer::new(self.cipher.clone(), self.consumer.encrypt_responses)
    }

    /// A consumer that nobody works for yet: no connection is made.
    pub(crate) fn new(
        common: &Common,
        consumer: &Consumer,
        run: Run,
        precheck: Option<Precheck>,
        metrics: ConsumerMetrics,
    ) -> Self {
        let Common { config, clock, .. } = common;
        let postgres =
            PgSettings { statement_timeout: consumer.statement_timeout, ..config.postgres.clone() };
        // A quarter of what the broker delivers ahead, where it does.
        let unsettled = match run {
            Run::Leased(_) => leased::ROOM,
            _ => usize::from(consumer.prefetch / 4).max(1),
        };
        Self {
            consumer: consumer.clone(),
            run,
            worker: config.worker.name.clone(),
            door: Door::new(postgres.clone(), config.cell.clone(), common.timelines.clone()),
            postgres,
            rabbitmq: config.rabbitmq.clone(),
            clock: clock.clone(),
            precheck,
            keys: Arc::clone(&common.keys),
            list_duplicates: config.audit.duplicates,
            stored_body: usize::try_from(config.dead_letters.max_body).unwrap_or(usize::MAX),
            cipher: config.cipher().cloned(),
            letter_quota: config.dead_letters.quota(),
            publisher: Publisher::new(
                config.rabbitmq.clone(),
                format!("oncely worker {} {} publisher", config.worker.name, consumer.name),
            ),
            unsettled: Unsettled::new(consumer, unsettled),
            budget: Budget::new(usize::try_from(consumer.buffer).unwrap_or(usize::MAX)),
            counters: Counters::new(metrics),
            traces: ConsumerTraces::default(),
            health: Health::new(clock.clone()),
            failures: FailureLog::new(consumer.name.clone()),
            permits: Permits::new(common.process.clone()),
            contention: Contention::default(),
            progress: Progress::default(),
            gate: Gate::default(),
            liveness: common.liveness.clone(),
            shutdown: config.worker.shutdown,
            journal: Journal::default(),
            stop: common.stop.clone(),
            abandon: common.abandon.clone(),
            done: common.done.clone(),
        }
    }

    /// Opens a session to the right cell, for handlers and what belongs to them.
    pub(crate) async fn open_session(&self) -> Result<Session, NoSession> {
        let mut session = self.door.open_for_handlers(&self.application()).await?;
        session.clock = self.clock.clone();
        Ok(session)
    }

    /// Ends what a session of ours does at the moment. Was the server told? What can't be done is logged.
    pub(crate) async fn cancel(&self, backend: Backend) -> bool {
        self.by_another_connection(async |connection| pg::cancel_backend(connection, backend).await)
            .await
            .is_some()
    }

    /// Ends a session of ours that nobody listens to any more.
    pub(crate) async fn end(&self, backend: Backend) {
        self.by_another_connection(async |connection| pg::end_backend(connection, backend).await).await;
    }

    /// Ends a session of ours, and waits until it is gone with its transaction and its locks. Is it?
    #[cfg(feature = "testing")]
    pub(crate) async fn end_now(&self, backend: Backend) -> bool {
        let ended = self
            .by_another_connection(async |connection| pg::end_backend_now(connection, backend).await)
            .await;
        ended == Some(true)
    }

    /// Does a session of ours still run a statement? `None` where the server can't be asked.
    pub(crate) async fn is_at_work(&self, backend: Backend) -> Option<bool> {
        self.by_another_connection(async |connection| pg::is_at_work(connection, backend).await).await
    }

    /// Asks on another connection.
    async fn by_another_connection<T>(
        &self,
        ask: impl AsyncFnOnce(&mut sqlx::PgConnection) -> Result<T, sqlx::Error>,
    ) -> Option<T> {
        let asked = async {
            let mut session = self.door.open(&self.application()).await?;
            let answer = pg::within(self.postgres.client_timeout(), ask(&mut session.connection)).await?;
            session.close().await;
            Ok::<T, NoSession>(answer)
        };
        match asked.await {
            Ok(answer) => Some(answer),
            Err(error) => {
                let consumer = &self.consumer.name;
                tracing::warn!(%consumer, error = %error, "a session could not be reached from outside");
                None
            }
        }
    }

    /// A batch has passed a stage that began then.
    pub(crate) fn passed(&self, batch: &BatchTrace, stage: Stage, began: Instant) {
        let took = began.elapsed();
        self.counters.metrics.stage(stage, took);
        batch.stage(stage, began, took);
    }

    /// How this consumer fares, for the heartbeat.
    pub(crate) fn report(&self) -> Report {
        let now = tokio::time::Instant::now();
        let contended =
            self.contention.since(now).map(|since| Contended { since: self.clock.now() - (now - since) });
        Report {
            consumer: self.consumer.name.as_str().to_owned(),
            counts: self.counters.now(),
            unsettled: self.unsettled.waiting(),
            paused: self.gate.pause(),
            condition: Condition { contended, ..self.health.condition() },
        }
    }

    /// How this process calls itself in PostgreSQL's and RabbitMQ's lists.
    pub(crate) fn application(&self) -> String {
        format!("oncely worker {} {}", self.worker, self.consumer.name)
    }
}
