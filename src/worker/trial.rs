//! Consumers without a broker, for an embedding program's tests: a lane decides what is handed over as it does in production. What a
//! broker would be told is noted (`journal`), and told nobody.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::batch::prepare::prepare;
use super::intake::arrivals::{Arrivals, Taken};
use super::lane::Lane;
use super::leased::{self, LeasedTrial};
use super::progress::Progress;
use super::register::register;
use super::shared::{Common, Shared};
use super::{Worker, WorkerError};
use crate::amqp::Delivery;
use crate::config::Consumer;
use crate::failpoint;
use crate::handler::Run;
use crate::metrics::ConsumerMetrics;
use crate::outcome::Outcome;
use crate::pg::{self, KeyDetails};
use crate::preflight::preflight_without_broker;

/// The consumers of a worker.
pub(crate) struct Trials {
    common: Common,
    runs: BTreeMap<String, Run>,
    /// Those that have been given something.
    trials: BTreeMap<String, Trial>,
}

/// Why a delivery is not decided: it would come again.
#[derive(Debug)]
pub(crate) enum Undecided {
    /// PostgreSQL does not answer, or refuses statements of ours.
    Away(String),
    /// It ended at the step that was asked for.
    Ended,
}

impl Trials {
    /// Looks whether the database fits, and tells it of the consumers, as a worker does when it starts. An `Err` inside: why PostgreSQL
    /// can't be asked.
    pub(crate) async fn open(worker: Worker) -> Result<Result<Self, String>, WorkerError> {
        let (mut config, runs) = worker.into_parts();
        pg::tell_server_texts(config.log.server_errors);
        let mut found = preflight_without_broker(&config).await;
        let opened = match found.session.take() {
            Some(mut session) => {
                found.read_secrets(&config, &mut session).await.map(|secrets| (session, secrets))
            }
            None => None,
        };
        found.refused()?;
        let Some((mut session, secrets)) = opened else { return Ok(Err(found.waits_for().join("; "))) };
        if !register(&config, &mut session).await {
            return Ok(Err(
                "the consumers could not be registered at PostgreSQL (role oncely_worker)".to_owned()
            ));
        }
        // Nobody stops it: a run under a lease is not given back early.
        config.worker.shutdown = Duration::MAX;
        let common = Common::without_broker(config, &session, &secrets);
        session.close().await;
        Ok(Ok(Self { common, runs, trials: BTreeMap::new() }))
    }

    /// A consumer; `None` where there is none of this name.
    pub(crate) async fn of(&mut self, consumer: &str) -> Option<&mut Trial> {
        let is_over = self.trials.get(consumer).is_some_and(|trial| trial.shared.abandon.is_cancelled());
        if is_over || !self.trials.contains_key(consumer) {
            let settings = self.common.config.consumers.iter().find(|one| one.name.as_str() == consumer)?;
            let trial = self.make(settings).await?;
            self.trials.insert(consumer.to_owned(), trial);
        }
        self.trials.get_mut(consumer)
    }

    /// A consumer of a process that is about to die: what its handler holds by a lease is free a second later.
    pub(crate) async fn of_one_that_dies(&mut self, consumer: &str) -> Option<&mut Trial> {
        if matches!(self.runs.get(consumer), Some(Run::Leased(_))) {
            let settings = self.common.config.consumers.iter().find(|one| one.name.as_str() == consumer)?;
            let mut settings = settings.clone();
            settings.lease.time = SHORT;
            let trial = self.make(&settings).await?;
            self.trials.insert(consumer.to_owned(), trial);
        }
        self.of(consumer).await
    }

    async fn make(&self, settings: &Consumer) -> Option<Trial> {
        let run = self.runs.get(settings.name.as_str())?.clone();
        let shared = Shared::new(&self.common, settings, run, None, ConsumerMetrics::new(settings));
        // Of this consumer alone: what ends its delivery ends no other's.
        let abandon = self.common.abandon.child_token();
        Some(Trial::start(Shared { abandon, progress: Progress::of_a_trial(), ..shared }).await)
    }

    /// Another process takes over: of this one nothing is left but what is in the database.
    pub(crate) fn forget(&mut self) {
        self.trials.clear();
    }

    /// The worker's clock goes ahead.
    pub(crate) fn advance(&self, by: Duration) {
        self.common.clock.set(self.common.clock.now() + by, std::time::Instant::now());
    }
}

/// The shortest lease that there is.
const SHORT: Duration = Duration::from_secs(1);

/// A consumer.
pub(crate) struct Trial {
    pub(crate) shared: Arc<Shared>,
    hands: Hands,
}

/// What takes its messages.
enum Hands {
    Lane(Box<OneLane>),
    /// Its handler runs under leases.
    Leases(LeasedTrial),
}

struct OneLane {
    arrivals: Arc<Arrivals<Box<Delivery>>>,
    lane: Lane,
}

impl Trial {
    async fn start(shared: Shared) -> Self {
        let shared = Arc::new(shared);
        shared.unsettled.let_go().await;
        if let Some(handler) = leased::handler(&shared.run) {
            let hands = Hands::Leases(LeasedTrial::new(&shared, handler));
            return Self { shared, hands };
        }
        let most = usize::try_from(shared.consumer.batch).unwrap_or(usize::MAX);
        // Nothing arrives: batches are handed over.
        let (_, receiver) = mpsc::channel(1);
        let arrivals = Arc::new(Arrivals::new(receiver, most, 1, 1, (usize::MAX, usize::MAX)));
        let lane = Lane::new(Arc::clone(&shared), Arc::clone(&arrivals));
        Self { shared, hands: Hands::Lane(Box::new(OneLane { arrivals, lane })) }
    }

    /// Its handler runs under leases.
    pub(crate) fn is_leased(&self) -> bool {
        matches!(self.hands, Hands::Leases(_))
    }

    /// Delivers a batch, as far as `until`; returns what became of each, by its number.
    pub(crate) async fn deliver(
        &mut self,
        deliveries: Vec<Box<Delivery>>,
        until: Option<&'static str>,
    ) -> Result<HashMap<u64, Outcome>, Undecided> {
        let count = deliveries.len();
        let is_done = match &mut self.hands {
            Hands::Lane(one) => {
                let batch = one.lane.batch(Taken::Arrived, deliveries);
                let done = ended_at(until, batch).await?.is_ok();
                // What nobody answers for yet: the test decides whether it comes again.
                drop(one.arrivals.aside.overflow(Instant::now(), 0, usize::MAX, |_| 0));
                if !done {
                    one.lane.decider.attempts.abandon().await;
                }
                done
            }
            Hands::Leases(leases) => {
                ended_at(until, leases.deliver(deliveries)).await?;
                true
            }
        };
        let decided = self.shared.journal.take();
        // A run under a lease that nothing came of is noted nowhere.
        if is_done && (decided.len() >= count || !self.is_leased()) {
            return Ok(decided);
        }
        let why = match self.shared.open_session().await {
            Err(error) => error.to_string(),
            Ok(session) => {
                session.close().await;
                let stalled = self.shared.health.condition().stalled.map(|trouble| trouble.text);
                stalled.unwrap_or_else(|| "the connection was lost".to_owned())
            }
        };
        Err(Undecided::Away(why))
    }

    /// From now on a batch goes step by step, as one does whose keys may be known.
    pub(crate) fn go_step_by_step(&mut self) {
        if let Hands::Lane(one) = &mut self.hands {
            one.lane.decider.attempts.prediction.postgres_knew();
        }
    }

    /// Waits until nobody holds the key of a message by a lease.
    pub(crate) async fn outlive_lease(&self, delivery: &Delivery) -> Result<(), String> {
        loop {
            let ends =
                self.key(delivery).await?.filter(|key| key.owner.is_some()).and_then(|key| key.not_before);
            let Some(ends) = ends else { return Ok(()) };
            let left = ends - self.database_time().await?;
            match left.to_std() {
                Ok(left) => tokio::time::sleep(left).await,
                Err(_) => return Ok(()),
            }
        }
    }

    async fn database_time(&self) -> Result<DateTime<Utc>, String> {
        let opened = self.shared.door.open(&self.shared.application()).await;
        let mut session = opened.map_err(|error| error.to_string())?;
        let asked = pg::database_time(&mut session.connection);
        let now = pg::within(self.shared.postgres.client_timeout(), asked).await;
        let now = now.map_err(|error| pg::describe(&error))?;
        session.close().await;
        Ok(now)
    }

    /// Ends its session as the death of its process does, and waits until the server has taken back what was not committed.
    pub(crate) async fn end_session(&mut self) -> bool {
        let Hands::Lane(one) = &mut self.hands else {
            // Those of its statements went with them.
            return true;
        };
        match one.lane.decider.attempts.session.take() {
            None => true,
            Some(session) => {
                let backend = session.backend;
                drop(session);
                self.shared.end_now(backend).await
            }
        }
    }

    /// What the database knows of the key of a message.
    pub(crate) async fn key(&self, delivery: &Delivery) -> Result<Option<KeyDetails>, String> {
        let Ok(candidate) = prepare(&self.shared, Box::new(delivery.clone())) else { return Ok(None) };
        let (tenant, key) = (candidate.identity.tenant, candidate.identity.key);
        let opened = self.shared.door.open(&self.shared.application()).await;
        let mut session = opened.map_err(|error| error.to_string())?;
        let asked = pg::key_details(
            &mut session.connection,
            key.as_str(),
            Some(tenant.as_str()),
            Some(self.shared.consumer.name.as_str()),
        );
        let found = pg::within(self.shared.postgres.client_timeout(), asked).await;
        let found = found.map_err(|error| pg::describe(&error))?;
        session.close().await;
        Ok(found.into_iter().next())
    }
}

/// Runs as far as `until`, where that is given.
async fn ended_at<T>(until: Option<&'static str>, run: impl Future<Output = T>) -> Result<T, Undecided> {
    match until {
        None => Ok(run.await),
        Some(step) => failpoint::run_until(step, run).await.ok_or(Undecided::Ended),
    }
}
