//! Tells the broker what became of deliveries: acknowledges them, or makes the copies that must arrive before that.

use std::collections::HashMap;
use std::sync::Arc;

use lapin::types::{AMQPValue, FieldTable};

use super::lane::Abandoned;
use super::prepare::Known;
use super::shared::Shared;
use crate::amqp::{Copy, Delivery, RUNG_HEADER, Topology, put, without, without_deaths};
use crate::failpoint::step;
use crate::identity::Identity;
use crate::outcome::{Disposition, Outcome};
use crate::reason::Rejection;
use crate::retry::rung_name;
use crate::seal::{LETTER_HEADER, LETTER_SEAL_HEADER, SEAL_HEADER, TENANT_HEADER};

/// Settles deliveries whose outcomes are committed: acknowledges what needs no copy, and hands the rest over with its copies.
/// Returns soon, whatever the broker does: see [`super::unsettled`].
pub(crate) async fn settle(
    shared: &Shared,
    decided: Vec<(Box<Delivery>, Known, Outcome)>,
) -> Result<(), Abandoned> {
    let mut ready = Vec::with_capacity(decided.len());
    let mut leaving = Vec::new();
    for (delivery, known, outcome) in decided {
        shared.failures.note(&known, &outcome);
        shared.health.note(&known, &outcome);
        let copy = match outcome.disposition() {
            Disposition::Ack => {
                ready.push((delivery, outcome));
                continue;
            }
            // Nobody settles it: it comes again with its channel.
            Disposition::Keep => continue,
            Disposition::Retry(delay) => retry_copy(shared, &delivery, &known, delay),
            Disposition::DeadLetter(rejection) => {
                dead_letter(shared, &delivery, &known, &rejection, &outcome)
            }
        };
        leaving.push((delivery, known, outcome, copy));
    }
    acknowledge(shared, ready.iter().map(|(delivery, outcome)| (&**delivery, outcome))).await;
    drop(ready);
    shared.unsettled.hand_over(shared, leaving).await
}

/// Acknowledges, channel by channel. An acknowledgement that does not arrive costs a redelivery, nothing else.
pub(super) async fn acknowledge(shared: &Shared, settled: impl IntoIterator<Item = (&Delivery, &Outcome)>) {
    let mut by_channel = HashMap::new();
    let mut completed = false;
    for (delivery, outcome) in settled {
        shared.counters.settled(outcome);
        completed |= outcome.completes();
        by_channel
            .entry(Arc::as_ptr(&delivery.epoch).addr())
            .or_insert_with(|| (Arc::clone(&delivery.epoch), Vec::new()))
            .1
            .push(delivery.tag);
    }
    if completed {
        shared.health.completed(shared.clock.now());
    }
    for (epoch, tags) in by_channel.into_values() {
        step("worker.ack.before");
        let settled = epoch.settle(tags).await;
        step("worker.ack.after");
        if let Err(error) = settled {
            tracing::debug!(consumer = %shared.consumer.name, error = %error, "an acknowledgement did not arrive");
        }
    }
}

fn retry_copy(shared: &Shared, delivery: &Delivery, known: &Known, delay: std::time::Duration) -> Copy {
    let message = &delivery.message;
    let headers = delivery.properties.headers().clone().unwrap_or_default();
    // A dead letter that somebody has moved back by hand is none any more.
    let mut headers = without(&without_deaths(&headers), &[LETTER_HEADER, LETTER_SEAL_HEADER]);
    // Without a delay it goes to the end of its own queue, by the way on which copies return.
    let exchange = match delay.is_zero() {
        true => Topology::return_exchange(&message.queue),
        false => {
            put(&mut headers, RUNG_HEADER, &rung_name(delay));
            Topology::retry_exchange(&message.queue)
        }
    };
    let user_id = message.properties.user_id.as_deref();
    if let (Some(tenant), Some(key)) = (&known.tenant, &known.key) {
        let identity =
            Identity { tenant: tenant.clone(), consumer: shared.consumer.name.clone(), key: key.clone() };
        if let Some(seal) = shared.seal_key.seal(&identity, user_id, &message.body) {
            put(&mut headers, SEAL_HEADER, &seal);
        }
    }
    copy(delivery, exchange, headers)
}

fn dead_letter(
    shared: &Shared,
    delivery: &Delivery,
    known: &Known,
    rejection: &Rejection,
    outcome: &Outcome,
) -> Copy {
    let message = &delivery.message;
    let headers = delivery.properties.headers().clone().unwrap_or_default();
    // What follows is our word, not a publisher's.
    let mut headers = without(&headers, &[LETTER_HEADER, LETTER_SEAL_HEADER, TENANT_HEADER, "x-oncely-key"]);
    put(&mut headers, "x-oncely-reason", rejection.reason.as_str());
    put(&mut headers, "x-oncely-detail", &rejection.detail);
    put(&mut headers, "x-oncely-consumer", shared.consumer.name.as_str());
    put(&mut headers, "x-oncely-queue", &message.queue);
    put(&mut headers, "x-oncely-worker", &shared.worker);
    if let Some(tenant) = &known.tenant {
        put(&mut headers, TENANT_HEADER, tenant.as_str());
    }
    if let Some(key) = &known.key {
        put(&mut headers, "x-oncely-key", key.as_str());
    }
    if let Outcome::DeadLettered { attempt, letter, .. } = outcome {
        headers.insert("x-oncely-attempt".into(), AMQPValue::LongLongInt(i64::from(*attempt)));
        if let Some(letter) = letter {
            let tenant = known.tenant.as_ref().map_or("", |tenant| tenant.as_str());
            put(&mut headers, LETTER_HEADER, &letter.to_string());
            put(&mut headers, LETTER_SEAL_HEADER, &shared.seal_key.mark(*letter, tenant, &message.body));
        }
    }
    if let Some(user_id) = &message.properties.user_id {
        put(&mut headers, "x-oncely-user-id", user_id);
    }
    if let Some(expiration) = delivery.properties.expiration() {
        put(&mut headers, "x-oncely-expiration", expiration.as_str());
    }
    copy(delivery, Topology::dead_letter_exchange(&message.queue), headers)
}

fn copy(delivery: &Delivery, exchange: String, headers: FieldTable) -> Copy {
    let message = &delivery.message;
    Copy::of(&delivery.properties, headers, exchange, message.routing_key.clone(), message.body.clone())
}
