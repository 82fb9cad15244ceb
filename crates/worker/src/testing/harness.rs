//! Deliveries without a broker.

use std::collections::HashMap;
use std::time::Duration;

use super::{HarnessError, IncomingMessage, KillPoint, TestOutcome};
use crate::worker::{TrialConsumer, TrialWorker, UndecidedReason, Worker};
use oncely_amqp::Delivery;
use oncely_core::decide::KeyStatus;

/// A worker that processes messages of a test; see the [module](super).
///
/// It keeps its sessions and its memory between deliveries, as a worker's lane does.
pub struct Harness {
    trials: TrialWorker,
}

impl std::fmt::Debug for Harness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Harness").finish_non_exhaustive()
    }
}

impl Harness {
    /// Connects to the database of a worker's configuration, checks it, and registers the consumers, as the worker does when it starts.
    ///
    /// # Errors
    /// If the configuration or the database is not fit, with all problems (migrations, functions, rights): [`HarnessError::Refused`]. If
    /// PostgreSQL does not answer: [`HarnessError::Away`].
    pub async fn connect(worker: Worker) -> Result<Self, HarnessError> {
        match TrialWorker::open(worker).await? {
            Ok(trials) => Ok(Self { trials }),
            Err(why) => Err(HarnessError::Away(why)),
        }
    }

    /// Delivers a message to a consumer, marked as a first delivery.
    ///
    /// # Errors
    /// If nothing is decided.
    pub async fn deliver(
        &mut self,
        consumer: &str,
        message: &IncomingMessage,
    ) -> Result<TestOutcome, HarnessError> {
        self.run_one(consumer, message, false).await
    }

    /// Delivers a message again after a missing acknowledgement: marked as redelivered. Such a message runs apart from others, and its run
    /// is counted before it begins.
    ///
    /// # Errors
    /// If nothing is decided.
    pub async fn redeliver(
        &mut self,
        consumer: &str,
        message: &IncomingMessage,
    ) -> Result<TestOutcome, HarnessError> {
        self.run_one(consumer, message, true).await
    }

    /// Delivers messages to a consumer as one batch; returns their outcomes in order.
    ///
    /// # Errors
    /// If nothing is decided.
    pub async fn deliver_batch(
        &mut self,
        consumer: &str,
        messages: &[IncomingMessage],
    ) -> Result<Vec<TestOutcome>, HarnessError> {
        self.run_batch(consumer, messages, false).await
    }

    /// Delivers a message, and ends the delivery at a step, as a crash of the worker's process does: its session is ended, and PostgreSQL
    /// has rolled back its transaction when this returns. The next delivery acts as another process.
    ///
    /// Under a lease the key stays held for a second instead of `lease.time`; when this returns that is over, and the next delivery takes
    /// the key over.
    ///
    /// # Errors
    /// If the delivery ended before that step, as a duplicate's does ([`HarnessError::NotReached`]); if the key is completed although
    /// Oncely has not run COMMIT ([`HarnessError::CommittedByHandler`]); or if nothing is decided.
    ///
    /// # Panics
    /// Never; but it unwinds internally, so a test that is built with `panic = "abort"` would end here.
    pub async fn kill_at(
        &mut self,
        step: KillPoint,
        consumer: &str,
        message: &IncomingMessage,
    ) -> Result<(), HarnessError> {
        let trial = self.trials.open_dying(consumer).await;
        let trial = trial.ok_or_else(|| HarnessError::NoConsumer(consumer.to_owned()))?;
        // A transaction of one statement has no intermediate steps.
        trial.go_step_by_step();
        let deliveries = to_deliveries(trial, std::slice::from_ref(message), false)?;
        let is_leased = trial.is_leased();
        let name = step.name(is_leased);
        match trial.deliver(deliveries.clone(), Some(name)).await {
            Ok(outcomes_by_tag) => {
                let outcome = read_outcomes(trial, &deliveries, outcomes_by_tag).await?.pop();
                let outcome = Box::new(outcome.ok_or_else(build_undecided_error)?);
                if is_leased {
                    self.trials.forget();
                }
                return Err(HarnessError::NotReached { step, outcome });
            }
            Err(UndecidedReason::Away(why)) => return Err(HarnessError::Away(why)),
            Err(UndecidedReason::Ended) => {}
        }
        if !trial.end_session().await {
            return Err(HarnessError::Away("its session could not be ended".to_owned()));
        }
        let mut is_completed = false;
        for delivery in deliveries.iter().filter(|_| is_leased) {
            trial.wait_until_unleased(delivery).await.map_err(HarnessError::Away)?;
        }
        for delivery in deliveries.iter().filter(|_| step != KillPoint::AfterCommit) {
            let key = trial.look_up_key(delivery).await.map_err(HarnessError::Away)?;
            is_completed |= key.is_some_and(|key| key.status == KeyStatus::Completed.as_str());
        }
        self.trials.forget();
        if is_completed { Err(HarnessError::CommittedByHandler { step }) } else { Ok(()) }
    }

    /// Advances the worker's clock, so that delayed messages may run. The database's clock does not change; it decides about leases and the
    /// delays of a consumer with a handler under leases: configure short ones in a test.
    pub fn advance(&mut self, by: Duration) {
        self.trials.advance(by);
    }

    /// Returns the consumer of this name, opened at its first message. Fails if the worker has no such consumer.
    async fn get_or_open_trial(&mut self, consumer: &str) -> Result<&mut TrialConsumer, HarnessError> {
        let trial = self.trials.get_or_open(consumer).await;
        trial.ok_or_else(|| HarnessError::NoConsumer(consumer.to_owned()))
    }

    /// Delivers messages as one batch.
    async fn run_batch(
        &mut self,
        consumer: &str,
        messages: &[IncomingMessage],
        redelivered: bool,
    ) -> Result<Vec<TestOutcome>, HarnessError> {
        let trial = self.get_or_open_trial(consumer).await?;
        let deliveries = to_deliveries(trial, messages, redelivered)?;
        match trial.deliver(deliveries.clone(), None).await {
            Ok(outcomes_by_tag) => read_outcomes(trial, &deliveries, outcomes_by_tag).await,
            Err(UndecidedReason::Away(why)) => Err(HarnessError::Away(why)),
            Err(UndecidedReason::Ended) => Err(build_undecided_error()),
        }
    }

    /// Delivers one message.
    async fn run_one(
        &mut self,
        consumer: &str,
        message: &IncomingMessage,
        redelivered: bool,
    ) -> Result<TestOutcome, HarnessError> {
        let outcomes = self.run_batch(consumer, std::slice::from_ref(message), redelivered).await?;
        outcomes.into_iter().next().ok_or_else(build_undecided_error)
    }
}

/// Builds the error of a delivery without an outcome.
fn build_undecided_error() -> HarnessError {
    HarnessError::Away("nothing was decided".to_owned())
}

/// Converts the messages to numbered deliveries.
fn to_deliveries(
    trial: &TrialConsumer,
    messages: &[IncomingMessage],
    redelivered: bool,
) -> Result<Vec<Box<Delivery>>, HarnessError> {
    let queue = trial.shared.consumer.queues.first().map(String::as_str).unwrap_or_default();
    let numbered = (0..).zip(messages);
    numbered.map(|(tag, one)| one.to_delivery(queue, redelivered, tag).map_err(HarnessError::Unfit)).collect()
}

/// Converts the decisions to outcomes, in the order of the deliveries. Reads stored responses from the database.
async fn read_outcomes(
    trial: &TrialConsumer,
    deliveries: &[Box<Delivery>],
    mut outcomes_by_tag: HashMap<u64, oncely_core::outcome::Outcome>,
) -> Result<Vec<TestOutcome>, HarnessError> {
    let mut outcomes = Vec::with_capacity(deliveries.len());
    for delivery in deliveries {
        let outcomes_by_tag = outcomes_by_tag.remove(&delivery.tag).ok_or_else(build_undecided_error)?;
        // Read from the key, as a transaction of one statement stores a response without returning it.
        let response = match outcomes_by_tag.has_completed_key() {
            true => {
                trial.look_up_key(delivery).await.map_err(HarnessError::Away)?.and_then(|key| key.response)
            }
            false => None,
        };
        let response = response.as_deref().map(serde_json::from_str).transpose()?;
        outcomes.push(TestOutcome::from_outcome(outcomes_by_tag, response));
    }
    Ok(outcomes)
}
