//! A delivery becomes a candidate, or a named rejection.

use crate::amqp::{Delivery, MOST_HEADER_VALUES, header};
use crate::extract::{self, Unidentified, identify};
use crate::handler::{JsonPolicy, Run};
use crate::identity::IdentityPart;
use crate::json::Json;
use crate::message::HeaderValue;
use crate::own_headers;
use crate::reason::{Reason, Rejection};
use crate::signing::{SignedIdentity, Unreadable};
use crate::worker::candidate::{Candidate, Known, Rejected};
use crate::worker::shared::Shared;

fn reject(delivery: Box<Delivery>, rejection: Rejection, known: Known) -> Box<Rejected> {
    Box::new(Rejected { delivery, rejection, known })
}

/// Does it name a key that is not known here, in its signed identity or in the mark of the dead letter that it was? Then the database is
/// asked before it is judged: another process may have signed it with one that is new.
pub(crate) fn names_unknown_key(shared: &Shared, delivery: &Delivery) -> bool {
    let headers = delivery.properties.headers().as_ref();
    let (identity, mark) =
        (header(headers, own_headers::IDENTITY), header(headers, own_headers::LETTER_MARK));
    (identity.is_some() || mark.is_some()) && shared.keys.now().signing.misses(identity, mark)
}

/// Finds out who a delivery is.
pub(crate) fn prepare(shared: &Shared, mut delivery: Box<Delivery>) -> Result<Candidate, Box<Rejected>> {
    let consumer = &shared.consumer;
    // Before anything looks into the body.
    let limit = usize::try_from(consumer.max_body).unwrap_or(usize::MAX);
    let size = delivery.message.body.len();
    if size > limit {
        let detail = format!("the body has {size} bytes; the limit is {limit} (consumers.max_body)");
        return Err(reject(delivery, Rejection::new(Reason::BodyTooLarge, detail), Known::default()));
    }
    // Where there is nothing else they were not read at all, and no signed identity was among them.
    let too_many = |delivery| {
        let detail = format!("the headers hold more than {MOST_HEADER_VALUES} values");
        Err(reject(delivery, Rejection::new(Reason::HeadersTooLarge, detail), Known::default()))
    };
    if delivery.message.headers.contains_key(own_headers::UNREAD) {
        return too_many(delivery);
    }
    let opened = match delivery.message.headers.get(own_headers::IDENTITY) {
        Some(HeaderValue::Text(value)) => {
            shared.keys.now().signing.open(value, &consumer.name, &delivery.message.body).map(Some)
        }
        Some(_) => Err(Unreadable::Malformed),
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
            return Err(reject(delivery, Rejection::new(Reason::SignatureInvalid, detail), Known::default()));
        }
    };
    let identity = match signed {
        Some(identity) => identity,
        // A copy of one that had just so many holds some more.
        None if delivery.header_values > MOST_HEADER_VALUES => return too_many(delivery),
        None => match identify(&delivery.message, &consumer.name, &consumer.tenant, &consumer.key) {
            Ok(identity) => identity,
            Err(Unidentified { rejection, tenant }) => {
                return Err(reject(delivery, rejection, Known { tenant, key: None }));
            }
        },
    };
    let (needs_json, wants_json) = match &shared.run {
        Run::Sql(handler) => {
            let json = handler.function.json;
            (json == JsonPolicy::Required, json != JsonPolicy::Off)
        }
        Run::Rust(_) | Run::RustBatch(_) | Run::Leased(_) => (false, false),
    };
    let is_json = wants_json && Json::parse(&delivery.message.body).is_ok();
    if needs_json && !is_json {
        let detail = "the body is not JSON, and the handler needs it (handler.json = \"required\")";
        return Err(reject(delivery, Rejection::new(Reason::InvalidJson, detail), Known::from(&identity)));
    }
    let lock = consumer.lock_order.as_ref().and_then(|source| extract::value(&delivery.message, source));
    Ok(Candidate {
        lock,
        fingerprint: consumer.fingerprint.of(&delivery.message.body),
        identity,
        is_json,
        delivery,
    })
}

/// Whose a delivery is, before it is prepared; `None` where that can't be said.
pub(crate) fn tenant_of(shared: &Shared, delivery: &Delivery) -> Option<IdentityPart> {
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
