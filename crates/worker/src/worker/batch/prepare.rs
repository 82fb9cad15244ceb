//! Prepares a delivery: it becomes a candidate, or a named rejection.

use crate::worker::candidate::{Candidate, PartialIdentity, RejectedDelivery};
use crate::worker::shared::ConsumerContext;
use oncely_amqp::{Delivery, MOST_HEADER_VALUES, header};
use oncely_core::extract::{self, UnidentifiedMessage, identify};
use oncely_core::identity::IdentityPart;
use oncely_core::json::JsonText;
use oncely_core::message::HeaderValue;
use oncely_core::own_headers;
use oncely_core::reason::{Reason, Rejection};
use oncely_core::signing::{SignatureError, SignedIdentity};
use oncely_handler::{ConsumerHandler, JsonPolicy};

fn reject(delivery: Box<Delivery>, rejection: Rejection, known: PartialIdentity) -> Box<RejectedDelivery> {
    Box::new(RejectedDelivery { delivery, rejection, known })
}

/// Returns whether it names an unknown key, in its signed identity or in the mark of the dead letter that it was. If so, the keys are read
/// before it is judged: another process may have signed it with a new one.
pub(crate) fn names_unknown_key(shared: &ConsumerContext, delivery: &Delivery) -> bool {
    let headers = delivery.properties.headers().as_ref();
    let (identity, mark) =
        (header(headers, own_headers::IDENTITY), header(headers, own_headers::LETTER_MARK));
    (identity.is_some() || mark.is_some()) && shared.keys.now().signing.misses(identity, mark)
}

/// Determines a delivery's identity.
pub(crate) fn prepare(
    shared: &ConsumerContext,
    mut delivery: Box<Delivery>,
) -> Result<Candidate, Box<RejectedDelivery>> {
    let consumer = &shared.consumer;
    // Before the body is read.
    let limit = usize::try_from(consumer.max_body).unwrap_or(usize::MAX);
    let size = delivery.message.body.len();
    if size > limit {
        let detail = format!("the body has {size} bytes; the limit is {limit} (consumers.max_body)");
        return Err(reject(
            delivery,
            Rejection::new(Reason::BodyTooLarge, detail),
            PartialIdentity::default(),
        ));
    }
    // Headers with too many values are not read at all, so no signed identity is known.
    let too_many = |delivery| {
        let detail = format!("the headers hold more than {MOST_HEADER_VALUES} values");
        Err(reject(delivery, Rejection::new(Reason::HeadersTooLarge, detail), PartialIdentity::default()))
    };
    if delivery.message.headers.contains_key(own_headers::UNREAD) {
        return too_many(delivery);
    }
    let opened = match delivery.message.headers.get(own_headers::IDENTITY) {
        Some(HeaderValue::Text(value)) => {
            shared.keys.now().signing.open(value, &consumer.name, &delivery.message.body).map(Some)
        }
        Some(_) => Err(SignatureError::Malformed),
        None => Ok(None),
    };
    let signed = match opened {
        // A copy that we published for a later try.
        Ok(Some(SignedIdentity { identity, user_id })) => {
            delivery.message.properties.user_id = user_id;
            identity
        }
        Ok(None) => None,
        Err(why) => {
            let detail = format!("the signed identity (header {}) {why}", own_headers::IDENTITY);
            return Err(reject(
                delivery,
                Rejection::new(Reason::SignatureInvalid, detail),
                PartialIdentity::default(),
            ));
        }
    };
    let identity = match signed {
        Some(identity) => identity,
        // A copy of one with exactly this number holds some more.
        None if delivery.header_values > MOST_HEADER_VALUES => return too_many(delivery),
        None => match identify(&delivery.message, &consumer.name, &consumer.tenant, &consumer.key) {
            Ok(identity) => identity,
            Err(UnidentifiedMessage { rejection, tenant }) => {
                return Err(reject(delivery, rejection, PartialIdentity { tenant, key: None }));
            }
        },
    };
    let (needs_json, wants_json) = match &shared.run {
        ConsumerHandler::Sql(handler) => {
            let json = handler.function.json;
            (json == JsonPolicy::Required, json != JsonPolicy::Off)
        }
        ConsumerHandler::Rust(_) | ConsumerHandler::RustBatch(_) | ConsumerHandler::Leased(_) => {
            (false, false)
        }
    };
    let is_json = wants_json && JsonText::parse(&delivery.message.body).is_ok();
    if needs_json && !is_json {
        let detail = "the body is not JSON, and the handler needs it (handler.json = \"required\")";
        return Err(reject(
            delivery,
            Rejection::new(Reason::InvalidJson, detail),
            PartialIdentity::from(&identity),
        ));
    }
    let lock = consumer.lock_order.as_ref().and_then(|source| extract::value(&delivery.message, source));
    Ok(Candidate {
        lock,
        fingerprint: consumer.fingerprint.fingerprint(&delivery.message.body),
        identity,
        is_json,
        delivery,
    })
}

/// Returns a delivery's tenant, before it is prepared; `None` if it is unknown.
pub(crate) fn tenant_of(shared: &ConsumerContext, delivery: &Delivery) -> Option<IdentityPart> {
    let (consumer, message) = (&shared.consumer, &delivery.message);
    if message.body.len() > usize::try_from(consumer.max_body).unwrap_or(usize::MAX) {
        return None;
    }
    // A copy that we published for a later try.
    if let Some(HeaderValue::Text(value)) = message.headers.get(own_headers::IDENTITY) {
        let signed = shared.keys.now().signing.open(value, &consumer.name, &message.body).ok()?;
        if let Some(identity) = signed.identity {
            return Some(identity.tenant);
        }
    }
    extract::value(message, &consumer.tenant)
}
