//! The copies of a message for retry and dead-letter queues.

use std::time::Duration;

use lapin::types::{AMQPValue, FieldTable};

use crate::worker::candidate::PartialIdentity;
use crate::worker::shared::ConsumerContext;
use oncely_amqp::{Copy, Delivery, Topology, put, without, without_deaths};
use oncely_core::identity::Identity;
use oncely_core::outcome::Outcome;
use oncely_core::own_headers;
use oncely_core::reason::Rejection;
use oncely_core::retry::rung_name;

/// Builds the copy that comes back after `delay`, with the identity that the message has now.
pub(super) fn retry_copy(
    shared: &ConsumerContext,
    delivery: &Delivery,
    known: &PartialIdentity,
    delay: Duration,
) -> Copy {
    let message = &delivery.message;
    let headers = delivery.properties.headers().clone().unwrap_or_default();
    // A dead letter that was moved back by hand is an ordinary message again.
    let mut headers = without(&without_deaths(&headers), &[own_headers::LETTER, own_headers::LETTER_MARK]);
    // Without a delay it goes to the end of its own queue, by the exchange through which copies return.
    let exchange = match delay.is_zero() {
        true => Topology::return_exchange(&message.queue),
        false => {
            put(&mut headers, own_headers::RUNG, &rung_name(delay));
            Topology::retry_exchange(&message.queue)
        }
    };
    let user_id = message.properties.user_id.as_deref();
    if let (Some(tenant), Some(key)) = (&known.tenant, &known.key) {
        let identity =
            Identity { tenant: tenant.clone(), consumer: shared.consumer.name.clone(), key: key.clone() };
        if let Some(signature) = shared.keys.now().signing.sign_identity(&identity, user_id, &message.body) {
            put(&mut headers, own_headers::IDENTITY, &signature);
        }
    }
    copy(delivery, exchange, headers)
}

/// Builds the copy for the dead-letter queue, with the reason in its headers.
pub(super) fn dead_letter_copy(
    shared: &ConsumerContext,
    delivery: &Delivery,
    known: &PartialIdentity,
    rejection: &Rejection,
    outcome: &Outcome,
) -> Copy {
    let message = &delivery.message;
    let headers = delivery.properties.headers().clone().unwrap_or_default();
    // The headers that follow are written by Oncely, not by a publisher.
    let mut headers = without(
        &headers,
        &[
            own_headers::LETTER,
            own_headers::LETTER_MARK,
            own_headers::TENANT,
            own_headers::KEY,
            // A requeue signs the identity in its row. A reader of the queue could publish under a signature in a letter.
            own_headers::IDENTITY,
        ],
    );
    put(&mut headers, own_headers::REASON, rejection.reason.as_str());
    put(&mut headers, own_headers::DETAIL, &rejection.detail);
    put(&mut headers, own_headers::CONSUMER, shared.consumer.name.as_str());
    put(&mut headers, own_headers::QUEUE, &message.queue);
    put(&mut headers, own_headers::WORKER, &shared.worker);
    if let Some(tenant) = &known.tenant {
        put(&mut headers, own_headers::TENANT, tenant.as_str());
    }
    if let Some(key) = &known.key {
        put(&mut headers, own_headers::KEY, key.as_str());
    }
    if let Outcome::DeadLettered { attempt, letter, .. } = outcome {
        headers.insert(own_headers::ATTEMPT.into(), AMQPValue::LongLongInt(i64::from(*attempt)));
        if let Some(letter) = letter {
            let tenant = known.tenant.as_ref().map_or("", |tenant| tenant.as_str());
            put(&mut headers, own_headers::LETTER, &letter.to_string());
            put(
                &mut headers,
                own_headers::LETTER_MARK,
                &shared.keys.now().signing.mark(*letter, tenant, &message.body),
            );
        }
    }
    if let Some(user_id) = &message.properties.user_id {
        put(&mut headers, own_headers::USER_ID, user_id);
    }
    if let Some(expiration) = delivery.properties.expiration() {
        put(&mut headers, own_headers::EXPIRATION, expiration.as_str());
    }
    copy(delivery, Topology::dead_letter_exchange(&message.queue), headers)
}

fn copy(delivery: &Delivery, exchange: String, headers: FieldTable) -> Copy {
    let message = &delivery.message;
    Copy::from_original(
        &delivery.properties,
        headers,
        exchange,
        message.routing_key.clone(),
        message.body.clone(),
    )
}
