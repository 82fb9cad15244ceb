//! The copies of a message for retry and dead-letter queues.

use std::time::Duration;

use lapin::types::{AMQPValue, FieldTable};

use crate::worker::candidate::PartialIdentity;
use crate::worker::shared::ConsumerContext;
use oncely_amqp::{Copy, Delivery, Topology, put_header, strip_deaths, strip_headers};
use oncely_core::identity::Identity;
use oncely_core::outcome::Outcome;
use oncely_core::own_headers;
use oncely_core::reason::Rejection;
use oncely_core::retry::rung_name;

/// Builds the copy that comes back after `delay`, with the identity that the message has now.
pub(super) fn build_retry_copy(
    shared: &ConsumerContext,
    delivery: &Delivery,
    identity: &PartialIdentity,
    delay: Duration,
) -> Copy {
    let message = &delivery.message;
    let headers = delivery.properties.headers().clone().unwrap_or_default();
    // A dead letter that was moved back by hand is an ordinary message again.
    let mut headers =
        strip_headers(&strip_deaths(&headers), &[own_headers::LETTER, own_headers::LETTER_MARK]);
    // Without a delay it goes to the end of its own queue, by the exchange through which copies return.
    let exchange = match delay.is_zero() {
        true => Topology::return_exchange(&message.queue),
        false => {
            put_header(&mut headers, own_headers::RUNG, &rung_name(delay));
            Topology::retry_exchange(&message.queue)
        }
    };
    let user_id = message.properties.user_id.as_deref();
    if let (Some(tenant), Some(key)) = (&identity.tenant, &identity.key) {
        let identity =
            Identity { tenant: tenant.clone(), consumer: shared.consumer.name.clone(), key: key.clone() };
        if let Some(signature) =
            shared.keys.current().signing.sign_identity(&identity, user_id, &message.body)
        {
            put_header(&mut headers, own_headers::IDENTITY, &signature);
        }
    }
    build_copy(delivery, exchange, headers)
}

/// Builds the copy for the dead-letter queue, with the reason in its headers.
pub(super) fn build_dead_letter_copy(
    shared: &ConsumerContext,
    delivery: &Delivery,
    identity: &PartialIdentity,
    rejection: &Rejection,
    outcome: &Outcome,
) -> Copy {
    let message = &delivery.message;
    let headers = delivery.properties.headers().clone().unwrap_or_default();
    // The headers that follow are written by Oncely, not by a publisher.
    let mut headers = strip_headers(
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
    put_header(&mut headers, own_headers::REASON, rejection.reason.as_str());
    put_header(&mut headers, own_headers::DETAIL, &rejection.detail);
    put_header(&mut headers, own_headers::CONSUMER, shared.consumer.name.as_str());
    put_header(&mut headers, own_headers::QUEUE, &message.queue);
    put_header(&mut headers, own_headers::WORKER, &shared.worker);
    if let Some(tenant) = &identity.tenant {
        put_header(&mut headers, own_headers::TENANT, tenant.as_str());
    }
    if let Some(key) = &identity.key {
        put_header(&mut headers, own_headers::KEY, key.as_str());
    }
    if let Outcome::DeadLettered { attempt, letter, .. } = outcome {
        headers.insert(own_headers::ATTEMPT.into(), AMQPValue::LongLongInt(i64::from(*attempt)));
        if let Some(letter) = letter {
            let tenant = identity.tenant.as_ref().map_or("", |tenant| tenant.as_str());
            put_header(&mut headers, own_headers::LETTER, &letter.to_string());
            put_header(
                &mut headers,
                own_headers::LETTER_MARK,
                &shared.keys.current().signing.sign_letter(*letter, tenant, &message.body),
            );
        }
    }
    if let Some(user_id) = &message.properties.user_id {
        put_header(&mut headers, own_headers::USER_ID, user_id);
    }
    if let Some(expiration) = delivery.properties.expiration() {
        put_header(&mut headers, own_headers::EXPIRATION, expiration.as_str());
    }
    build_copy(delivery, Topology::dead_letter_exchange(&message.queue), headers)
}

/// Builds a copy with these headers for an exchange.
fn build_copy(delivery: &Delivery, exchange: String, headers: FieldTable) -> Copy {
    let message = &delivery.message;
    Copy::from_original(
        &delivery.properties,
        headers,
        exchange,
        message.routing_key.clone(),
        message.body.clone(),
    )
}
