//! Settles deliveries with the broker: acknowledges them, or hands over the copies that must arrive before that.

use super::acknowledge::acknowledge;
use super::copies::{dead_letter_copy, retry_copy};
use super::settled::SettledDelivery;
use crate::worker::abandoned::AbandonedBatch;
use crate::worker::candidate::DecidedDelivery;
use crate::worker::shared::ConsumerContext;
use oncely_core::outcome::Disposition;
use oncely_handler::ConsumerHandler;
use oncely_traces::BatchTrace;

/// Settles deliveries with committed outcomes: acknowledges those that need no copy, and hands the rest over with their copies. Returns
/// soon, also if the broker does not answer: see [`super::settle_copies`].
pub(crate) async fn settle(
    shared: &ConsumerContext,
    batch: &BatchTrace,
    decided: Vec<DecidedDelivery>,
) -> Result<(), AbandonedBatch> {
    let mut ready = Vec::with_capacity(decided.len());
    let mut leaving = Vec::new();
    for mut one in decided {
        let DecidedDelivery { delivery, known, outcome } = &mut one;
        shared.failures.note(known, outcome);
        shared.health.note(known, outcome);
        let copy = match outcome.disposition() {
            // Not settled: it comes again with its channel.
            Disposition::Keep => continue,
            Disposition::Ack => None,
            Disposition::Retry(delay) => Some(retry_copy(shared, delivery, known, delay)),
            Disposition::DeadLetter(rejection) => {
                Some(dead_letter_copy(shared, delivery, known, &rejection, outcome))
            }
        };
        if copy.is_some() && matches!(shared.run, ConsumerHandler::Leased(_)) {
            // Its run is over, and its copy may take long to arrive.
            delivery.park();
        }
        let trace = batch.message(&delivery.message, outcome, delivery.arrived);
        let settled = SettledDelivery { decided: one, trace };
        match copy {
            None => ready.push(settled),
            Some(copy) => leaving.push((settled, copy)),
        }
    }
    acknowledge(shared, &ready).await;
    drop(ready);
    shared.unsettled.hand_over(&shared.consumer.name, &shared.stop, leaving).await
}
