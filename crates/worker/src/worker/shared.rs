//! State that the lanes and subscriptions of one consumer share.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::counters::Counters;
use super::failure_log::FailureLog;
use super::health::{Condition, ConsumerReport, Health, LockContention};
use super::intake::gate::Gate;
use super::intake::pace::Pace;
use super::isolation::contention::Contention;
use super::isolation::permit::{Permits, ProcessRights};
use super::journal::Journal;
use super::keys::KeyCache;
use super::nodes::ClusterNode;
use super::progress::ConsumerProgress;
use super::settle::unsettled::{MAX_LEASED_WAITING, UnsettledDeliveries};
use oncely_amqp::{Budget, Publisher};
use oncely_config::{Config, ConsumerSettings, RabbitSettings};
use oncely_core::decide::PrecheckMode;
use oncely_core::encryption::{Cipher, Sealer};
use oncely_handler::ConsumerHandler;
use oncely_mirror::{EpochWatch, Mirror};
use oncely_postgres::{
    self as pg, Backend, DatabaseClock, NoSession, PgSettings, Quota, Secrets, Session, SessionFactory,
    Timelines,
};
use oncely_process::metrics::{ConsumerMetrics, Stage};
use oncely_process::vitals::Liveness;
use oncely_traces::{BatchTrace, ConsumerTraces};

/// Maximum number of large messages of a consumer at work, which is the default number of lanes: the statement of each has its body three
/// times more.
const MAX_CONCURRENT_LARGE: usize = 2;

/// A consumer at work, at one server of PostgreSQL.
#[derive(Clone)]
pub(crate) struct ConsumerContext {
    pub(crate) consumer: ConsumerSettings,
    pub(crate) handler: ConsumerHandler,
    pub(crate) worker: String,
    /// Opens sessions.
    pub(crate) factory: SessionFactory,
    pub(crate) postgres: PgSettings,
    pub(crate) rabbitmq: RabbitSettings,
    pub(crate) clock: DatabaseClock,
    pub(crate) precheck: Option<Precheck>,
    pub(crate) keys: Arc<KeyCache>,
    pub(crate) list_duplicates: bool,
    /// Largest body that a dead letter's row holds.
    pub(crate) stored_body: usize,
    /// Encrypts that body, if configured.
    pub(crate) cipher: Option<Arc<dyn Cipher>>,
    /// Maximum number of letters of a tenant that are stored, unless an operator has set another quota.
    pub(crate) letter_quota: Quota,
    pub(crate) publisher: Arc<Publisher>,
    /// Deliveries that the lanes can't settle at once.
    pub(crate) unsettled: Arc<UnsettledDeliveries>,
    /// Bytes that deliveries may hold.
    pub(crate) budget: Budget,
    pub(crate) counters: Arc<Counters>,
    pub(crate) traces: ConsumerTraces,
    pub(crate) health: Arc<Health>,
    pub(crate) failures: Arc<FailureLog>,
    pub(crate) permits: Arc<Permits>,
    /// Permits of large messages at work. A lane waits for one in its turn, and keeps it until its transaction ends.
    pub(crate) large_permits: Arc<Semaphore>,
    /// State of collisions of its transactions.
    pub(crate) contention: Arc<Contention>,
    /// Time of a message in its handler, if that gets one at a time in batches.
    pub(crate) pace: Option<Arc<Pace>>,
    /// Maximum number of messages in a batch at a node of a cluster: the nodes share the prefetch.
    pub(crate) batch_share: Option<Arc<AtomicUsize>>,
    pub(crate) progress: Arc<ConsumerProgress>,
    /// Closed while the consumer is paused.
    pub(crate) gate: Arc<Gate>,
    pub(crate) liveness: Liveness,
    /// Time that work in progress may take after the worker is stopped.
    pub(crate) shutdown: Duration,
    pub(crate) journal: Arc<Journal>,
    /// Cancelled when the worker stops: no new work begins.
    pub(crate) stop: CancellationToken,
    /// Cancelled when unfinished work is left to redelivery.
    pub(crate) abandon: CancellationToken,
    /// Cancelled when all work is done: connections may close.
    pub(crate) done: CancellationToken,
    /// The same consumer at the nodes of a cluster.
    pub(crate) at_nodes: Arc<Mutex<Vec<Arc<Self>>>>,
}

/// Access to the mirror.
#[derive(Clone)]
pub(crate) struct Precheck {
    pub(crate) mirror: Mirror,
    pub(crate) mode: PrecheckMode,
    pub(crate) watch: EpochWatch,
}

impl Precheck {
    /// Returns the access for forwarded messages: a hit is looked up in PostgreSQL, for the watched epoch is not that of the node that keeps the
    /// tenant.
    pub(crate) fn for_forwarded(self) -> Self {
        let mode = match self.mode {
            PrecheckMode::Off => PrecheckMode::Off,
            _ => PrecheckMode::Verify,
        };
        Self { mode, ..self }
    }
}

/// State that the consumers of a process have in common.
pub struct ProcessContext {
    pub(crate) config: Config,
    pub(crate) clock: DatabaseClock,
    pub(crate) timelines: Timelines,
    keys: Arc<KeyCache>,
    process: ProcessRights,
    liveness: Liveness,
    stop: CancellationToken,
    pub(crate) abandon: CancellationToken,
    pub(crate) done: CancellationToken,
}

impl ProcessContext {
    /// Creates the state that all consumers of a process share.
    pub(crate) fn new(
        config: Config,
        clock: DatabaseClock,
        timelines: Timelines,
        secrets: &Secrets,
        liveness: Liveness,
        stop: CancellationToken,
    ) -> Self {
        Self {
            keys: Arc::new(KeyCache::new(&config, secrets)),
            config,
            clock,
            timelines,
            process: ProcessRights::default(),
            liveness,
            stop,
            abandon: CancellationToken::new(),
            done: CancellationToken::new(),
        }
    }

    /// Creates the state of a process that uses no broker, with the epoch and the clock of `session`, which may be closed afterwards. Its stop
    /// token is cancelled from the start: where a worker would wait for a server and try again, the work is abandoned, and a run under a
    /// lease is given back after `config.worker.shutdown`.
    pub fn without_broker(config: Config, session: &Session, secrets: &Secrets) -> Self {
        let timelines = Timelines::default();
        timelines.record_epoch(&session.cell.epoch);
        let stop = CancellationToken::new();
        stop.cancel();
        Self::new(config, session.clock.clone(), timelines, secrets, Liveness::default(), stop)
    }
}

impl ConsumerContext {
    /// Returns the sealer of the handler's responses, which encrypts them if that is configured.
    pub(crate) fn sealer(&self) -> Sealer {
        Sealer::new(self.cipher.clone(), self.consumer.encrypt_responses)
    }

    /// Creates the context of a consumer; starts no task and makes no connection.
    pub(crate) fn new(
        common: &ProcessContext,
        consumer: &ConsumerSettings,
        handler: ConsumerHandler,
        precheck: Option<Precheck>,
        metrics: ConsumerMetrics,
    ) -> Self {
        let ProcessContext { config, clock, .. } = common;
        let postgres =
            PgSettings { statement_timeout: consumer.statement_timeout, ..config.postgres.clone() };
        // For lanes a quarter of the messages that the broker delivers ahead.
        let unsettled = match handler {
            ConsumerHandler::Leased(_) => MAX_LEASED_WAITING,
            _ => usize::from(consumer.prefetch / 4).max(1),
        };
        let gets_one_at_a_time = match &handler {
            ConsumerHandler::Sql(handler) => !handler.function.batch,
            ConsumerHandler::Rust(_) => true,
            ConsumerHandler::Leased(_) | ConsumerHandler::RustBatch(_) => false,
        };
        Self {
            consumer: consumer.clone(),
            handler,
            worker: config.worker.name.clone(),
            factory: SessionFactory::new(postgres.clone(), config.cell.clone(), common.timelines.clone()),
            postgres,
            rabbitmq: config.rabbitmq.clone(),
            clock: clock.clone(),
            precheck,
            keys: Arc::clone(&common.keys),
            list_duplicates: config.audit.duplicates,
            stored_body: usize::try_from(config.dead_letters.max_body).unwrap_or(usize::MAX),
            cipher: config.cipher().cloned(),
            letter_quota: config.dead_letters.quota(),
            publisher: Arc::new(Publisher::new(
                config.rabbitmq.clone(),
                format!("oncely worker {} {} publisher", config.worker.name, consumer.name),
            )),
            unsettled: Arc::new(UnsettledDeliveries::new(consumer, unsettled)),
            budget: Budget::new(usize::try_from(consumer.buffer).unwrap_or(usize::MAX)),
            counters: Arc::new(Counters::new(metrics)),
            traces: ConsumerTraces::default(),
            health: Arc::new(Health::new(clock.clone())),
            failures: Arc::new(FailureLog::start(consumer.name.clone())),
            permits: Arc::new(Permits::new(common.process.clone())),
            large_permits: Arc::new(Semaphore::new(MAX_CONCURRENT_LARGE)),
            contention: Arc::default(),
            pace: gets_one_at_a_time.then(Arc::default),
            batch_share: None,
            progress: Arc::default(),
            gate: Arc::default(),
            liveness: common.liveness.clone(),
            shutdown: config.worker.shutdown,
            journal: Arc::default(),
            stop: common.stop.clone(),
            abandon: common.abandon.clone(),
            done: common.done.clone(),
            at_nodes: Arc::default(),
        }
    }

    /// Creates the context of the same consumer at a node. Its epoch, trust in the mirror, clock, evidence about failures, contention and
    /// health are the node's own; counts, limits, pauses and the connection to the broker are those of the consumer.
    pub(crate) fn at_node(
        &self,
        node: &ClusterNode,
        mode: Option<PrecheckMode>,
        batch_share: Arc<AtomicUsize>,
    ) -> Arc<Self> {
        let postgres =
            PgSettings { statement_timeout: self.postgres.statement_timeout, ..node.settings.clone() };
        let precheck = self.precheck.clone();
        let own = Arc::new(Self {
            factory: self.factory.at_node(postgres.clone(), node.timelines.clone()),
            postgres,
            clock: node.clock.clone(),
            precheck: precheck.zip(mode).map(|(precheck, mode)| Precheck {
                mode,
                watch: node.watch.clone(),
                ..precheck
            }),
            health: Arc::new(Health::new(node.clock.clone())),
            permits: Arc::new(self.permits.for_another_node()),
            contention: Arc::default(),
            pace: self.pace.as_ref().map(|_| Arc::default()),
            batch_share: Some(batch_share),
            progress: Arc::default(),
            at_nodes: Arc::default(),
            ..self.clone()
        });
        self.at_nodes.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&own));
        own
    }

    /// Opens a session to the right cell, for handlers and their transactions.
    pub(crate) async fn open_session(&self) -> Result<Session, NoSession> {
        let mut session = self.factory.open_for_handlers(&self.application()).await?;
        session.clock = self.clock.clone();
        Ok(session)
    }

    /// Cancels the running statement of one of the consumer's sessions. Returns whether the server received that; a failure is logged.
    pub(crate) async fn cancel_statement(&self, backend: Backend) -> bool {
        self.run_on_another_connection(async |connection| pg::cancel_backend(connection, backend).await)
            .await
            .is_some()
    }

    /// Ends one of the consumer's sessions, which is not read any more. A failure is logged.
    pub(crate) async fn terminate_session(&self, backend: Backend) {
        self.run_on_another_connection(async |connection| pg::end_backend(connection, backend).await).await;
    }

    /// Ends one of the consumer's sessions, and waits up to five seconds for the end of its transaction and its locks. Returns whether it
    /// is gone.
    #[cfg(feature = "testing")]
    pub(crate) async fn end_session_now(&self, backend: Backend) -> bool {
        let result = self
            .run_on_another_connection(async |connection| pg::end_backend_now(connection, backend).await)
            .await;
        result == Some(true)
    }

    /// Queries over another connection whether one of the consumer's sessions still runs a statement; `None` after an error.
    pub(crate) async fn query_is_at_work(&self, backend: Backend) -> Option<bool> {
        self.run_on_another_connection(async |connection| pg::is_at_work(connection, backend).await).await
    }

    /// Runs a statement on another connection, opened for it. `None` after an error, which is logged.
    async fn run_on_another_connection<T>(
        &self,
        statement: impl AsyncFnOnce(&mut sqlx::PgConnection) -> Result<T, sqlx::Error>,
    ) -> Option<T> {
        let query = async {
            let mut session = self.factory.open(&self.application()).await?;
            let value =
                pg::wait_for_answer(self.postgres.client_timeout(), statement(&mut session.connection))
                    .await?;
            session.close().await;
            Ok::<T, NoSession>(value)
        };
        match query.await {
            Ok(value) => Some(value),
            Err(error) => {
                let consumer = &self.consumer.name;
                tracing::warn!(%consumer, error = %error, "cannot query or cancel a session over a second connection");
                None
            }
        }
    }

    /// Records a stage of a batch that lasted from `began` until now.
    pub(crate) fn record_stage(&self, batch: &BatchTrace, stage: Stage, began: Instant) {
        let duration = began.elapsed();
        self.counters.metrics.record_stage(stage, duration);
        batch.record_stage(stage, began, duration);
    }

    /// Returns the consumer's part of the heartbeat.
    pub(crate) fn report(&self) -> ConsumerReport {
        let mut condition = self.condition();
        for at_node in self.at_nodes.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            condition.add(at_node.condition());
        }
        ConsumerReport {
            consumer: self.consumer.name.as_str().to_owned(),
            counts: self.counters.snapshot(),
            unsettled: self.unsettled.waiting_count(),
            routes: self.counters.routes(),
            paused: self.gate.current_pause(),
            condition,
        }
    }

    /// Returns the consumer's condition at this server.
    fn condition(&self) -> Condition {
        let now = tokio::time::Instant::now();
        let contended = self
            .contention
            .colliding_since(now)
            .map(|since| LockContention { since: self.clock.now() - (now - since) });
        Condition { contended, ..self.health.condition() }
    }

    /// Returns the name of this process in PostgreSQL's and RabbitMQ's lists.
    pub(crate) fn application(&self) -> String {
        format!("oncely worker {} {}", self.worker, self.consumer.name)
    }
}
