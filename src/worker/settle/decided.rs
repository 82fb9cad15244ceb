//! Tells the broker what became of deliveries: acknowledges them, or has the copies made that must arrive before that.

use super::acknowledge::acknowledge;
use super::copies::{dead_letter_copy, retry_copy};
use super::settled::Settled;
use crate::amqp::Delivery;
use crate::handler::Run;
use crate::outcome::{Disposition, Outcome};
use crate::traces::BatchTrace;
use crate::worker::abandoned::Abandoned;
use crate::worker::candidate::Known;
use crate::worker::shared::Shared;

/// Settles deliveries whose outcomes are committed: acknowledges what needs no copy, and hands the rest over with its copies.
/// Returns soon, whatever the broker does: see [`super::settle_copies`].
pub(crate) async fn settle(
    shared: &Shared,
    batch: &BatchTrace,
    decided: Vec<(Box<Delivery>, Known, Outcome)>,
) -> Result<(), Abandoned> {
    let mut ready = Vec::with_capacity(decided.len());
    let mut leaving = Vec::new();
    for (mut delivery, known, outcome) in decided {
        shared.failures.note(&known, &outcome);
        shared.health.note(&known, &outcome);
        let copy = match outcome.disposition() {
            // Nobody settles it: it comes again with its channel.
            Disposition::Keep => continue,
            Disposition::Ack => None,
            Disposition::Retry(delay) => Some(retry_copy(shared, &delivery, &known, delay)),
            Disposition::DeadLetter(rejection) => {
                Some(dead_letter_copy(shared, &delivery, &known, &rejection, &outcome))
            }
        };
        if copy.is_some() && matches!(shared.run, Run::Leased(_)) {
            // Its run is over, and its copy may be long in coming.
            delivery.park();
        }
        let trace = batch.message(&delivery.message, &outcome, delivery.arrived);
        let settled = Settled { delivery, known, outcome, trace };
        match copy {
            None => ready.push(settled),
            Some(copy) => leaving.push((settled, copy)),
        }
    }
    acknowledge(shared, &ready).await;
    drop(ready);
    shared.unsettled.hand_over(&shared.consumer.name, &shared.stop, leaving).await
}
