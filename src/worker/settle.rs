//! Tells the broker what became of deliveries: copies first, confirmed; then acknowledgements.

use std::collections::HashMap;
use std::sync::Arc;

use lapin::types::{AMQPValue, FieldTable};

use super::lane::Abandoned;
use super::prepare::Known;
use super::shared::Shared;
use crate::amqp::{Copy, Delivery, RUNG_HEADER, Topology, put, without, without_deaths};
use crate::backoff::Backoff;
use crate::failpoint::step;
use crate::identity::Identity;
use crate::outcome::{Disposition, Outcome};
use crate::plant::planted;
use crate::reason::Rejection;
use crate::retry::rung_name;
use crate::seal::{LETTER_HEADER, LETTER_SEAL_HEADER, SEAL_HEADER, TENANT_HEADER};

/// Settles deliveries whose outcomes are committed. A copy that can't be published is tried again until it can, or until
/// its delivery will come again anyway: without a confirmed copy an original is never acknowledged.
pub(crate) async fn settle(
    shared: &Shared,
    decided: Vec<(Box<Delivery>, Known, Outcome)>,
) -> Result<(), Abandoned> {
    let mut copies = Vec::new();
    let mut kept = Vec::new();
    for (index, (delivery, known, outcome)) in decided.iter().enumerate() {
        match outcome.disposition() {
            Disposition::Ack => {}
            Disposition::Keep => kept.push(index),
            Disposition::Retry(delay) => copies.push((index, retry_copy(shared, delivery, known, delay))),
            Disposition::DeadLetter(rejection) => {
                tracing::warn!(
                    consumer = %shared.consumer.name,
                    queue = delivery.message.queue,
                    tenant = known.tenant.as_ref().map(tracing::field::display),
                    key = known.key.as_ref().map(tracing::field::display),
                    reason = %rejection.reason,
                    detail = rejection.detail,
                    "a message is dead-lettered"
                );
                copies.push((index, dead_letter(shared, delivery, known, &rejection, outcome)));
            }
        }
    }
    // What needs no copy does not wait for those that do.
    let waiting: std::collections::HashSet<usize> =
        copies.iter().map(|(index, _)| *index).chain(kept).collect();
    let ready = (0..decided.len()).filter(|index| !waiting.contains(index));
    acknowledge(shared, &decided, ready).await;

    let mut backoff = Backoff::default();
    // One copy that the broker can't take closes the channel for all of its batch, so a second try goes one by one.
    let mut at_once = copies.len();
    // What came on a channel that is gone comes again, and its copy then.
    copies.retain(|(index, _)| !decided[*index].0.epoch.is_over());
    while !copies.is_empty() {
        let mut results = Vec::with_capacity(copies.len());
        for batch in copies.chunks(at_once.max(1)) {
            let batch: Vec<Copy> = batch.iter().map(|(_, copy)| copy.clone()).collect();
            step("worker.publish.before");
            results.extend(shared.publisher.publish(&batch).await);
            step("worker.publish.after");
        }
        at_once = 1;
        let mut arrived = Vec::new();
        let mut failure = None;
        let mut results = results.into_iter();
        copies.retain(|(index, _)| match results.next() {
            answer if answer.is_some() && planted("copy_unconfirmed") => {
                arrived.push(*index);
                false
            }
            Some(Ok(())) => {
                arrived.push(*index);
                false
            }
            Some(Err(error)) => {
                failure = Some(error);
                true
            }
            None => true,
        });
        acknowledge(shared, &decided, arrived).await;
        copies.retain(|(index, _)| !decided[*index].0.epoch.is_over());
        if copies.is_empty() {
            break;
        }
        if let Some(error) = failure {
            tracing::error!(
                consumer = %shared.consumer.name,
                copies = copies.len(),
                error = %error,
                "copies for retry or dead-letter queues did not arrive; their originals stay where they are"
            );
        }
        tokio::select! {
            () = shared.stop.cancelled() => return Err(Abandoned),
            () = tokio::time::sleep(backoff.next()) => {}
        }
    }
    Ok(())
}

/// Acknowledges, channel by channel. An acknowledgement that does not arrive costs a redelivery, nothing else.
async fn acknowledge(
    shared: &Shared,
    decided: &[(Box<Delivery>, Known, Outcome)],
    indices: impl IntoIterator<Item = usize>,
) {
    let mut by_channel = HashMap::new();
    let mut completed = false;
    for index in indices {
        let (delivery, _, outcome) = &decided[index];
        shared.counters.settled(outcome);
        completed |= matches!(outcome, Outcome::Completed { .. });
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
    put(&mut headers, RUNG_HEADER, &rung_name(delay));
    let user_id = message.properties.user_id.as_deref();
    if let (Some(tenant), Some(key)) = (&known.tenant, &known.key) {
        let identity =
            Identity { tenant: tenant.clone(), consumer: shared.consumer.name.clone(), key: key.clone() };
        if let Some(seal) = shared.seal_key.seal(&identity, user_id, &message.body) {
            put(&mut headers, SEAL_HEADER, &seal);
        }
    }
    copy(delivery, Topology::retry_exchange(&message.queue), headers)
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
