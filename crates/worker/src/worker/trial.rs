//! Consumers without a broker, for an embedding program's tests: a lane decides the given messages as it does in production. The outcomes
//! are recorded in `journal` only.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::batch::prepare::determine_identity;
use super::intake::arrivals::Arrivals;
use super::intake::aside::BatchOrigin;
use super::lane::Lane;
use super::leased::{self, LeasedTrial};
use super::progress::ConsumerProgress;
use super::register::register;
use super::shared::{ConsumerContext, ProcessContext};
use super::transaction::decider::TakenTogether;
use super::{Worker, WorkerError};
use oncely_amqp::Delivery;
use oncely_config::ConsumerSettings;
use oncely_core::identity::Identity;
use oncely_core::outcome::Outcome;
use oncely_failpoint as failpoint;
use oncely_handler::ConsumerHandler;
use oncely_postgres::{self as pg, KeyDetails};
use oncely_process::metrics::ConsumerMetrics;
use oncely_process::preflight::preflight_without_broker;

/// The consumers of a worker.
pub(crate) struct TrialWorker {
    common: ProcessContext,
    handlers: BTreeMap<String, ConsumerHandler>,
    /// Consumers that have been given messages.
    trials: BTreeMap<String, TrialConsumer>,
}

/// Reason why a delivery is undecided: it would come again.
#[derive(Debug)]
pub(crate) enum UndecidedReason {
    /// PostgreSQL does not answer, or refuses Oncely's statements.
    Away(String),
    /// It ended at the requested step.
    Ended,
}

impl TrialWorker {
    /// Checks the database, and registers the consumers, as a worker does at its start. An inner `Err` has the reason why PostgreSQL can't
    /// be asked.
    pub(crate) async fn open(worker: Worker) -> Result<Result<Self, String>, WorkerError> {
        let (mut config, handlers) = worker.into_parts();
        pg::set_server_texts_shown(config.log.server_errors);
        let mut found = preflight_without_broker(&config).await;
        let session_and_secrets = match found.session.take() {
            Some(mut session) => {
                found.read_secrets(&config, &mut session).await.map(|secrets| (session, secrets))
            }
            None => None,
        };
        found.ensure_fit()?;
        let Some((mut session, secrets)) = session_and_secrets else {
            return Ok(Err(found.wait_conditions().join("; ")));
        };
        if !register(&config, &mut session).await {
            return Ok(Err(
                "the consumers could not be registered at PostgreSQL (role oncely_worker)".to_owned()
            ));
        }
        // The stop token is cancelled from the start: a run under a lease would be given back after the shutdown time.
        config.worker.shutdown = Duration::MAX;
        let common = ProcessContext::without_broker(config, &session, &secrets);
        session.close().await;
        Ok(Ok(Self { common, handlers, trials: BTreeMap::new() }))
    }

    /// Returns a consumer, and starts it first if it is not open or was abandoned; `None` without a consumer of this name.
    pub(crate) async fn get_or_open(&mut self, consumer: &str) -> Option<&mut TrialConsumer> {
        let is_over = self.trials.get(consumer).is_some_and(|trial| trial.shared.abandon.is_cancelled());
        if is_over || !self.trials.contains_key(consumer) {
            let settings = self.common.config.consumers.iter().find(|one| one.name.as_str() == consumer)?;
            let trial = self.start_consumer(settings).await?;
            self.trials.insert(consumer.to_owned(), trial);
        }
        self.trials.get_mut(consumer)
    }

    /// Returns a consumer of a process that is about to crash; `None` without a consumer of this name. If its handler runs under leases, it
    /// is restarted, with leases of [`SHORTEST_LEASE`].
    pub(crate) async fn open_dying(&mut self, consumer: &str) -> Option<&mut TrialConsumer> {
        if matches!(self.handlers.get(consumer), Some(ConsumerHandler::Leased(_))) {
            let settings = self.common.config.consumers.iter().find(|one| one.name.as_str() == consumer)?;
            let mut settings = settings.clone();
            settings.lease.time = SHORTEST_LEASE;
            let trial = self.start_consumer(&settings).await?;
            self.trials.insert(consumer.to_owned(), trial);
        }
        self.get_or_open(consumer).await
    }

    /// Starts a consumer with these settings; `None` if it has no handler.
    async fn start_consumer(&self, settings: &ConsumerSettings) -> Option<TrialConsumer> {
        let handler = self.handlers.get(settings.name.as_str())?.clone();
        let shared =
            ConsumerContext::new(&self.common, settings, handler, None, ConsumerMetrics::register(settings));
        // Of this consumer alone: the end of its delivery does not end another's.
        let abandon = self.common.abandon.child_token();
        Some(
            TrialConsumer::start(ConsumerContext {
                abandon,
                progress: Arc::new(ConsumerProgress::new_for_trial()),
                ..shared
            })
            .await,
        )
    }

    /// Simulates that another process takes over: of the present process only the data in the database is left.
    pub(crate) fn forget(&mut self) {
        self.trials.clear();
    }

    /// Advances the worker's clock.
    pub(crate) fn advance(&self, by: Duration) {
        self.common.clock.set(self.common.clock.now() + by, std::time::Instant::now());
    }
}

/// Shortest lease that is possible.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

pub(crate) struct TrialConsumer {
    pub(crate) shared: Arc<ConsumerContext>,
    executor: TrialExecutor,
}

/// Executor of its messages.
enum TrialExecutor {
    Lane(Box<SingleLane>),
    /// For a handler that runs under leases.
    Leases(LeasedTrial),
}

struct SingleLane {
    arrivals: Arc<Arrivals<Box<Delivery>>>,
    lane: Lane,
}

impl TrialConsumer {
    /// Starts a consumer without a broker: a lane, or runs under leases if its handler needs them.
    async fn start(shared: ConsumerContext) -> Self {
        let shared = Arc::new(shared);
        shared.unsettled.drop_handed_over().await;
        if let Some(handler) = leased::leased_handler(&shared.handler) {
            let executor = TrialExecutor::Leases(LeasedTrial::start(&shared, handler));
            return Self { shared, executor };
        }
        let most = usize::try_from(shared.consumer.batch).unwrap_or(usize::MAX);
        // No delivery arrives: batches are passed directly.
        let (_, receiver) = mpsc::channel(1);
        let arrivals = Arc::new(Arrivals::new(receiver, most, 1, 1, (usize::MAX, usize::MAX)));
        let lane = Lane::register(Arc::clone(&shared), Arc::clone(&arrivals));
        Self { shared, executor: TrialExecutor::Lane(Box::new(SingleLane { arrivals, lane })) }
    }

    /// Returns whether the consumer's handler runs under leases.
    pub(crate) fn is_leased(&self) -> bool {
        matches!(self.executor, TrialExecutor::Leases(_))
    }

    /// Delivers a batch, until the step `last_step`; returns the outcome of each delivery by its number.
    pub(crate) async fn deliver(
        &mut self,
        deliveries: Vec<Box<Delivery>>,
        last_step: Option<&'static str>,
    ) -> Result<HashMap<u64, Outcome>, UndecidedReason> {
        let count = deliveries.len();
        let is_done = match &mut self.executor {
            TrialExecutor::Lane(lane) => {
                lane.lane.decider.taken_together = TakenTogether::default();
                lane.arrivals.aside.forget_late();
                let batch = lane.lane.process_batch(BatchOrigin::Arrived, deliveries);
                let done = run_until_step(last_step, batch).await?.is_ok();
                // Undecided messages: the test decides whether they come again.
                drop(lane.arrivals.aside.take_overflow(Instant::now(), 0, usize::MAX, |_| 0));
                if !done {
                    lane.lane.decider.runner.abandon().await;
                }
                done
            }
            TrialExecutor::Leases(leases) => {
                run_until_step(last_step, leases.deliver(deliveries)).await?;
                true
            }
        };
        let outcomes = self.shared.journal.take();
        // A run under a lease without a decision is not recorded.
        if is_done && (outcomes.len() >= count || !self.is_leased()) {
            return Ok(outcomes);
        }
        let why = match self.shared.open_session().await {
            Err(error) => error.to_string(),
            Ok(session) => {
                session.close().await;
                let stalled = self.shared.health.condition().stalled.map(|notice| notice.text);
                stalled.unwrap_or_else(|| "the connection was lost".to_owned())
            }
        };
        Err(UndecidedReason::Away(why))
    }

    /// Makes batches go step by step from now on, as for keys that may be known.
    pub(crate) fn go_step_by_step(&mut self) {
        if let TrialExecutor::Lane(one) = &mut self.executor {
            one.lane.decider.runner.prediction.record_known();
        }
    }

    /// Waits until no lease holds the key of a message.
    pub(crate) async fn wait_until_unleased(&self, delivery: &Delivery) -> Result<(), String> {
        loop {
            let lease_end = self
                .look_up_key(delivery)
                .await?
                .filter(|key| key.owner.is_some())
                .and_then(|key| key.not_before);
            let Some(lease_end) = lease_end else { return Ok(()) };
            let left = lease_end - self.query_database_time().await?;
            match left.to_std() {
                Ok(left) => tokio::time::sleep(left).await,
                Err(_) => return Ok(()),
            }
        }
    }

    /// Queries the database's time.
    async fn query_database_time(&self) -> Result<DateTime<Utc>, String> {
        let session = self.shared.factory.open(&self.shared.application()).await;
        let mut session = session.map_err(|error| error.to_string())?;
        let query = pg::read_database_time(&mut session.connection);
        let now = pg::wait_for_answer(self.shared.postgres.client_timeout(), query).await;
        let now = now.map_err(|error| pg::describe(&error))?;
        session.close().await;
        Ok(now)
    }

    /// Ends the lane's session as a crash of its process does, and waits until the server has rolled back uncommitted work. Returns whether
    /// the session is gone.
    pub(crate) async fn end_session(&mut self) -> bool {
        let TrialExecutor::Lane(one) = &mut self.executor else {
            // The sessions of its statements ended with them.
            return true;
        };
        match one.lane.decider.runner.session.take() {
            None => true,
            Some(session) => {
                let backend = session.backend;
                drop(session);
                self.shared.end_session_now(backend).await
            }
        }
    }

    /// Queries the database's record of a message's key; `None` if the key is unknown.
    pub(crate) async fn look_up_key(&self, delivery: &Delivery) -> Result<Option<KeyDetails>, String> {
        let Ok(Identity { tenant, key, .. }) = determine_identity(&self.shared, &mut delivery.clone()) else {
            return Ok(None);
        };
        let session = self.shared.factory.open(&self.shared.application()).await;
        let mut session = session.map_err(|error| error.to_string())?;
        let query = pg::read_key_details(
            &mut session.connection,
            key.as_str(),
            Some(tenant.as_str()),
            Some(self.shared.consumer.name.as_str()),
        );
        let details = pg::wait_for_answer(self.shared.postgres.client_timeout(), query).await;
        let details = details.map_err(|error| pg::describe(&error))?;
        session.close().await;
        Ok(details.into_iter().next())
    }
}

/// Runs a future to its end, or until the step `last_step` if one is given.
async fn run_until_step<T>(
    last_step: Option<&'static str>,
    run: impl Future<Output = T>,
) -> Result<T, UndecidedReason> {
    match last_step {
        None => Ok(run.await),
        Some(step) => failpoint::run_until(step, run).await.ok_or(UndecidedReason::Ended),
    }
}
