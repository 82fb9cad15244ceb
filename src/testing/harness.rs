//! Deliveries without a broker.

use std::collections::HashMap;
use std::time::Duration;

use super::{HarnessError, Incoming, Outcome, Step};
use crate::amqp::Delivery;
use crate::decide::KeyStatus;
use crate::worker::{Trial, Trials, Undecided, Worker};

/// A worker that takes what a test hands over; see the [module](super).
///
/// It keeps its sessions and its memory from one delivery to the next, as a worker's lane does.
pub struct Harness {
    trials: Trials,
}

impl std::fmt::Debug for Harness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Harness").finish_non_exhaustive()
    }
}

impl Harness {
    /// Connects to the database of a worker's configuration, looks whether it fits, and tells it of the consumers, as the worker does when
    /// it starts.
    ///
    /// # Errors
    /// [`HarnessError::Refused`] with all that does not fit (migrations, functions, rights), or [`HarnessError::Away`].
    pub async fn connect(worker: Worker) -> Result<Self, HarnessError> {
        match Trials::open(worker).await? {
            Ok(trials) => Ok(Self { trials }),
            Err(why) => Err(HarnessError::Away(why)),
        }
    }

    /// Delivers a message to a consumer, for the first time as the broker knows.
    ///
    /// # Errors
    /// Where nothing is decided.
    pub async fn deliver(&mut self, consumer: &str, message: &Incoming) -> Result<Outcome, HarnessError> {
        self.one(consumer, message, false).await
    }

    /// Delivers a message as the broker does whose acknowledgement never came: marked as redelivered. Such a message runs apart from
    /// others, and its run is counted before it begins.
    ///
    /// # Errors
    /// Where nothing is decided.
    pub async fn redeliver(&mut self, consumer: &str, message: &Incoming) -> Result<Outcome, HarnessError> {
        self.one(consumer, message, true).await
    }

    /// Delivers messages to a consumer as one batch; returns what became of each, in their order.
    ///
    /// # Errors
    /// Where nothing is decided.
    pub async fn deliver_batch(
        &mut self,
        consumer: &str,
        messages: &[Incoming],
    ) -> Result<Vec<Outcome>, HarnessError> {
        self.batch(consumer, messages, false).await
    }

    /// Delivers a message, and ends the delivery at a step, as the death of the worker's process does: its session is ended, and
    /// PostgreSQL has taken back what was not committed when this returns. The next delivery is another process's.
    ///
    /// Of a handler that runs under leases the key stays held, for a second instead of `lease.time`; when this returns that is over, and
    /// the next delivery takes the key over.
    ///
    /// # Errors
    /// [`HarnessError::NotReached`] where the delivery was over before that step, as a duplicate's is;
    /// [`HarnessError::CommittedByHandler`] where the key is completed although Oncely has not said COMMIT; else where nothing is decided.
    ///
    /// # Panics
    /// Never; but it unwinds inside, so a test that is built with `panic = "abort"` would end here.
    pub async fn kill_at(
        &mut self,
        step: Step,
        consumer: &str,
        message: &Incoming,
    ) -> Result<(), HarnessError> {
        let trial = self.trials.of_one_that_dies(consumer).await;
        let trial = trial.ok_or_else(|| HarnessError::NoConsumer(consumer.to_owned()))?;
        // A transaction of one statement has no steps in between.
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
            Err(Undecided::Away(why)) => return Err(HarnessError::Away(why)),
            Err(Undecided::Ended) => {}
        }
        if !trial.end_session().await {
            return Err(HarnessError::Away("its session could not be ended".to_owned()));
        }
        let mut completed = false;
        for delivery in deliveries.iter().filter(|_| is_leased) {
            trial.outlive_lease(delivery).await.map_err(HarnessError::Away)?;
        }
        for delivery in deliveries.iter().filter(|_| step != Step::AfterCommit) {
            let key = trial.key(delivery).await.map_err(HarnessError::Away)?;
            completed |= key.is_some_and(|key| key.status == KeyStatus::Completed.as_str());
        }
        self.trials.forget();
        if completed { Err(HarnessError::CommittedByHandler { step }) } else { Ok(()) }
    }

    /// Sets the worker's clock ahead: what waits for its time may run. The database's own clock stays as it is, and by that leases are
    /// reckoned, and the delays of a consumer whose handler runs under them: give it short ones in a test.
    pub fn advance(&mut self, by: Duration) {
        self.trials.advance(by);
    }

    async fn trial(&mut self, consumer: &str) -> Result<&mut Trial, HarnessError> {
        let trial = self.trials.of(consumer).await;
        trial.ok_or_else(|| HarnessError::NoConsumer(consumer.to_owned()))
    }

    async fn batch(
        &mut self,
        consumer: &str,
        messages: &[Incoming],
        redelivered: bool,
    ) -> Result<Vec<Outcome>, HarnessError> {
        let trial = self.trial(consumer).await?;
        let deliveries = deliveries(trial, messages, redelivered)?;
        match trial.deliver(deliveries.clone(), None).await {
            Ok(decided) => outcomes(trial, &deliveries, decided).await,
            Err(Undecided::Away(why)) => Err(HarnessError::Away(why)),
            Err(Undecided::Ended) => Err(undecided()),
        }
    }

    async fn one(
        &mut self,
        consumer: &str,
        message: &Incoming,
        redelivered: bool,
    ) -> Result<Outcome, HarnessError> {
        let outcomes = self.batch(consumer, std::slice::from_ref(message), redelivered).await?;
        outcomes.into_iter().next().ok_or_else(undecided)
    }
}

fn undecided() -> HarnessError {
    HarnessError::Away("nothing was decided".to_owned())
}

/// The messages as a broker would deliver them, numbered.
fn deliveries(
    trial: &Trial,
    messages: &[Incoming],
    redelivered: bool,
) -> Result<Vec<Box<Delivery>>, HarnessError> {
    let queue = trial.shared.consumer.queues.first().map(String::as_str).unwrap_or_default();
    let numbered = (0..).zip(messages);
    numbered.map(|(tag, one)| one.delivery(queue, redelivered, tag).map_err(HarnessError::Unfit)).collect()
}

/// What became of each, in their order.
async fn outcomes(
    trial: &Trial,
    deliveries: &[Box<Delivery>],
    mut decided: HashMap<u64, crate::outcome::Outcome>,
) -> Result<Vec<Outcome>, HarnessError> {
    let mut outcomes = Vec::with_capacity(deliveries.len());
    for delivery in deliveries {
        let decided = decided.remove(&delivery.tag).ok_or_else(undecided)?;
        // Also where the one statement has stored it that has told nobody.
        let response = match decided.completes() {
            true => trial.key(delivery).await.map_err(HarnessError::Away)?.and_then(|key| key.response),
            false => None,
        };
        let response = response.as_deref().map(serde_json::from_str).transpose()?;
        outcomes.push(Outcome::of(decided, response));
    }
    Ok(outcomes)
}
