//! Consumers without a broker, for an embedding program's tests: a lane decides what is handed over as it does in production. What a
//! broker would be told is noted (`journal`), and told nobody.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::batch::prepare::prepare;
use super::intake::arrivals::{Arrivals, Taken};
use super::lane::Lane;
use super::register::register;
use super::shared::{Common, Shared};
use super::{Worker, WorkerError};
use crate::amqp::Delivery;
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
        let (config, runs) = worker.into_parts();
        pg::tell_server_texts(config.log.server_errors);
        let mut found = preflight_without_broker(&config).await;
        let opened = match found.session.take() {
            Some(mut session) => {
                found.read_secrets(&config, &mut session).await.map(|secrets| (session, secrets))
            }
            None => None,
        };
        if !found.problems.is_empty() {
            return Err(found.problems.into());
        }
        let Some((mut session, secrets)) = opened else { return Ok(Err(found.unreachable.join("; "))) };
        if !register(&config, &mut session).await? {
            return Ok(Err("PostgreSQL went away while the consumers were registered".to_owned()));
        }
        let common = Common::without_broker(config, &session, &secrets);
        session.close().await;
        Ok(Ok(Self { common, runs, trials: BTreeMap::new() }))
    }

    /// A consumer; `None` where there is none of this name.
    pub(crate) async fn of(&mut self, consumer: &str) -> Option<&mut Trial> {
        if !self.trials.contains_key(consumer) {
            let settings = self.common.config.consumers.iter().find(|one| one.name.as_str() == consumer)?;
            let shared = Shared::new(
                &self.common,
                settings,
                self.runs.get(consumer)?.clone(),
                None,
                ConsumerMetrics::new(settings),
            );
            self.trials.insert(consumer.to_owned(), Trial::start(shared).await);
        }
        self.trials.get_mut(consumer)
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

/// A consumer with one lane.
pub(crate) struct Trial {
    pub(crate) shared: Arc<Shared>,
    arrivals: Arc<Arrivals<Box<Delivery>>>,
    lane: Lane,
}

impl Trial {
    async fn start(shared: Shared) -> Self {
        let shared = Arc::new(shared);
        shared.unsettled.let_go().await;
        let most = usize::try_from(shared.consumer.batch).unwrap_or(usize::MAX);
        // Nothing arrives: batches are handed over.
        let (_, receiver) = mpsc::channel(1);
        let arrivals = Arc::new(Arrivals::new(receiver, most, 1, 1, (usize::MAX, usize::MAX)));
        let lane = Lane::new(Arc::clone(&shared), Arc::clone(&arrivals));
        Self { shared, arrivals, lane }
    }

    /// Delivers a batch, as far as `until`; returns what became of each, by its number.
    pub(crate) async fn deliver(
        &mut self,
        deliveries: Vec<Box<Delivery>>,
        until: Option<&'static str>,
    ) -> Result<HashMap<u64, Outcome>, Undecided> {
        let batch = self.lane.batch(Taken::Arrived, deliveries);
        let done = match until {
            None => batch.await,
            Some(step) => match failpoint::run_until(step, batch).await {
                Some(done) => done,
                None => return Err(Undecided::Ended),
            },
        };
        // What nobody answers for yet: the test decides whether it comes again.
        drop(self.arrivals.aside.overflow(Instant::now(), 0, usize::MAX, |_| 0));
        let decided = self.shared.journal.take();
        if done.is_ok() {
            return Ok(decided);
        }
        self.lane.decider.attempts.abandon().await;
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
        self.lane.decider.attempts.prediction.postgres_knew();
    }

    /// Ends its session as the death of its process does, and waits until the server has taken back what was not committed.
    pub(crate) async fn end_session(&mut self) -> bool {
        match self.lane.decider.attempts.session.take() {
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
