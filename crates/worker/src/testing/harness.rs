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
    /// [`HarnessError::Refused`] with all problems (migrations, functions, rights), or [`HarnessError::Away`].
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
    /// [`HarnessError::NotReached`] if the delivery ended before that step, as a duplicate's does; [`HarnessError::CommittedByHandler`] if
    /// the key is completed although Oncely has not run COMMIT; otherwise if nothing is decided.
    ///
    /// # Panics
    /// Never; but it unwinds internally, so a test that is built with `panic = "abort"` would end here.
    pub async fn kill_at(
        &mut self,
        step: KillPoint,
        consumer: &str,
        message: &IncomingMessage,
    ) -> Result<(), HarnessError> {
        let trial = self.trials.of_one_that_dies(consumer).await;
        let trial = trial.ok_or_else(|| HarnessError::NoConsumer(consumer.to_owned()))?;
        // A transaction of one statement has no intermediate steps.
        trial.go_step_by_step();
        let deliveries = deliveries(trial, std::slice::from_ref(message), false)?;
        let is_leased = trial.is_leased();
        let name = step.name(is_leased);
        match trial.deliver(deliveries.clone(), Some(name)).await {
            Ok(decided) => {
                let outcome = outcomes(trial, &deliveries, decided).await?.pop();
                let outcome = Box::new(outcome.ok_or_else(undecided)?);
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
        let mut completed = false;
        for delivery in deliveries.iter().filter(|_| is_leased) {
            trial.outlive_lease(delivery).await.map_err(HarnessError::Away)?;
        }
        for delivery in deliveries.iter().filter(|_| step != KillPoint::AfterCommit) {
            let key = trial.key(delivery).await.map_err(HarnessError::Away)?;
            completed |= key.is_some_and(|key| key.status == KeyStatus::Completed.as_str());
        }
        self.trials.forget();
        if completed { Err(HarnessError::CommittedByHandler { step }) } else { Ok(()) }
    }

    /// Advances the worker's clock, so that delayed messages may run. The database's clock does not change; it decides about leases and the
    /// delays of a consumer with a handler under leases: configure short ones in a test.
    pub fn advance(&mut self, by: Duration) {
        self.trials.advance(by);
    }

    async fn trial(&mut self, consumer: &str) -> Result<&mut TrialConsumer, HarnessError> {
        let trial = self.trials.consumer(consumer).await;
        trial.ok_or_else(|| HarnessError::NoConsumer(consumer.to_owned()))
    }

    async fn run_batch(
        &mut self,
        consumer: &str,
        messages: &[IncomingMessage],
        redelivered: bool,
    ) -> Result<Vec<TestOutcome>, HarnessError> {
        let trial = self.trial(consumer).await?;
        let deliveries = deliveries(trial, messages, redelivered)?;
        match trial.deliver(deliveries.clone(), None).await {
            Ok(decided) => outcomes(trial, &deliveries, decided).await,
            Err(UndecidedReason::Away(why)) => Err(HarnessError::Away(why)),
            Err(UndecidedReason::Ended) => Err(undecided()),
        }
    }

    async fn run_one(
        &mut self,
        consumer: &str,
        message: &IncomingMessage,
        redelivered: bool,
    ) -> Result<TestOutcome, HarnessError> {
        let outcomes = self.run_batch(consumer, std::slice::from_ref(message), redelivered).await?;
        outcomes.into_iter().next().ok_or_else(undecided)
    }
}

fn undecided() -> HarnessError {
    HarnessError::Away("nothing was decided".to_owned())
}

/// Returns the messages as numbered deliveries.
fn deliveries(
    trial: &TrialConsumer,
    messages: &[IncomingMessage],
    redelivered: bool,
) -> Result<Vec<Box<Delivery>>, HarnessError> {
    let queue = trial.shared.consumer.queues.first().map(String::as_str).unwrap_or_default();
    let numbered = (0..).zip(messages);
    numbered.map(|(tag, one)| one.delivery(queue, redelivered, tag).map_err(HarnessError::Unfit)).collect()
}

/// Returns the outcomes in order.
async fn outcomes(
    trial: &TrialConsumer,
    deliveries: &[Box<Delivery>],
    mut decided: HashMap<u64, oncely_core::outcome::Outcome>,
) -> Result<Vec<TestOutcome>, HarnessError> {
    let mut outcomes = Vec::with_capacity(deliveries.len());
    for delivery in deliveries {
        let decided = decided.remove(&delivery.tag).ok_or_else(undecided)?;
        // Read from the key, as a transaction of one statement stores a response without returning it.
        let response = match decided.completes() {
            true => trial.key(delivery).await.map_err(HarnessError::Away)?.and_then(|key| key.response),
            false => None,
        };
        let response = response.as_deref().map(serde_json::from_str).transpose()?;
        outcomes.push(TestOutcome::from_decision(decided, response));
    }
    Ok(outcomes)
}
