//! Prepares a delivery: it becomes a candidate, or a named rejection.

use crate::worker::candidate::{Candidate, PartialIdentity, RejectedDelivery};
use crate::worker::shared::ConsumerContext;
use oncely_amqp::{Delivery, MAX_HEADER_VALUES, header};
use oncely_core::extract::{self, UnidentifiedMessage, identify};
use oncely_core::identity::{Identity, IdentityPart};
use oncely_core::json::JsonText;
use oncely_core::message::HeaderValue;
use oncely_core::own_headers;
use oncely_core::reason::{Reason, Rejection};
use oncely_core::signing::{SignatureError, SignedIdentity};
use oncely_handler::{ConsumerHandler, JsonPolicy};

/// Returns whether a delivery names an unknown signing key, in its signed identity or in its mark as a former dead letter. If so, the keys
/// are read before the delivery is prepared: another process may have signed it with a new key.
pub(crate) fn names_unknown_signing_key(shared: &ConsumerContext, delivery: &Delivery) -> bool {
    let headers = delivery.properties.headers().as_ref();
    let (identity, mark) =
        (header(headers, own_headers::IDENTITY), header(headers, own_headers::LETTER_MARK));
    (identity.is_some() || mark.is_some()) && shared.keys.current().signing.lacks_key_of(identity, mark)
}

/// Prepares a delivery: determines its identity, and checks its body as its consumer requires.
pub(crate) fn prepare(
    shared: &ConsumerContext,
    mut delivery: Box<Delivery>,
) -> Result<Candidate, Box<RejectedDelivery>> {
    let consumer = &shared.consumer;
    let identity = match determine_identity(shared, &mut delivery) {
        Ok(identity) => identity,
        Err(UnidentifiedMessage { rejection, tenant }) => {
            let identity = PartialIdentity { tenant, key: None };
            return Err(Box::new(RejectedDelivery { delivery, rejection, identity }));
        }
    };
    let (needs_json, wants_json) = match &shared.handler {
        ConsumerHandler::Sql(handler) => {
            let json = handler.function.json;
            (json == JsonPolicy::Required, json != JsonPolicy::Off)
        }
        ConsumerHandler::Rust(_) | ConsumerHandler::RustBatch(_) | ConsumerHandler::Leased(_) => {
            (false, false)
        }
    };
    let json = wants_json.then(|| JsonText::parse(&delivery.message.body).ok()).flatten();
    let is_json = json.is_some_and(JsonText::is_bounded_as_jsonb);
    if needs_json && !is_json {
        let detail = match json {
            Some(_) => "the body has numbers with exponents that would add over 1 MiB of digits",
            None => "the body is not JSON, and the handler needs it (handler.json = \"required\")",
        };
        let (rejection, identity) =
            (Rejection::new(Reason::InvalidJson, detail), PartialIdentity::from(&identity));
        return Err(Box::new(RejectedDelivery { delivery, rejection, identity }));
    }
    let lock = consumer.lock_order.as_ref().and_then(|source| extract::read_value(&delivery.message, source));
    Ok(Candidate {
        lock,
        fingerprint: consumer.fingerprint.fingerprint(&delivery.message.body),
        identity,
        is_json,
        delivery,
    })
}

/// Prepares a batch's deliveries.
pub(crate) async fn prepare_all(
    shared: &ConsumerContext,
    deliveries: Vec<Box<Delivery>>,
) -> (Vec<Candidate>, Vec<Box<RejectedDelivery>>) {
    let mut candidates = Vec::with_capacity(deliveries.len());
    let mut rejected = Vec::new();
    let mut stretch = ReadingStretch::default();
    for delivery in deliveries {
        stretch.add(delivery.message.body.len()).await;
        match prepare(shared, delivery) {
            Ok(candidate) => candidates.push(candidate),
            Err(rejection) => rejected.push(rejection),
        }
    }
    (candidates, rejected)
}

/// Bytes of bodies that were read since other tasks could run. A worker has one thread by default: while a batch of large bodies is read
/// at a stretch, no heartbeat is sent, and after `worker.watchdog` the process ends.
#[derive(Debug, Default)]
pub(crate) struct ReadingStretch(usize);

impl ReadingStretch {
    /// Longest stretch in bytes: some ten milliseconds.
    const MAX_STRETCH: usize = 1 << 20;

    /// Counts the body that is read next; lets other tasks run before it if the stretch would become too long.
    pub(crate) async fn add(&mut self, bytes: usize) {
        if self.0 > 0 && self.0 + bytes > Self::MAX_STRETCH {
            self.0 = 0;
            tokio::task::yield_now().await;
        }
        self.0 += bytes;
    }
}

/// Determines a delivery's identity: the signed one of a copy that Oncely has published, or by the consumer's sources. Sets the user of a
/// signed copy in the delivery.
pub(crate) fn determine_identity(
    shared: &ConsumerContext,
    delivery: &mut Delivery,
) -> Result<Identity, UnidentifiedMessage> {
    let consumer = &shared.consumer;
    let unidentified =
        |reason, detail| UnidentifiedMessage { rejection: Rejection::new(reason, detail), tenant: None };
    // Before the body is read.
    let limit = usize::try_from(consumer.max_body).unwrap_or(usize::MAX);
    let size = delivery.message.body.len();
    if size > limit {
        let detail = format!("the body has {size} bytes; the limit is {limit} (consumers.max_body)");
        return Err(unidentified(Reason::BodyTooLarge, detail));
    }
    let too_many = || {
        let detail = format!("the headers hold more than {MAX_HEADER_VALUES} values");
        unidentified(Reason::HeadersTooLarge, detail)
    };
    // Headers with too many values are not read at all, so no signed identity is known.
    if delivery.message.headers.contains_key(own_headers::UNREAD) {
        return Err(too_many());
    }
    let signed_identity = match delivery.message.headers.get(own_headers::IDENTITY) {
        Some(HeaderValue::Text(value)) => shared
            .keys
            .current()
            .signing
            .read_identity(value, &consumer.name, &delivery.message.body)
            .map(Some),
        Some(_) => Err(SignatureError::Malformed),
        None => Ok(None),
    };
    let identity = match signed_identity {
        // A copy that Oncely published for a later try.
        Ok(Some(SignedIdentity { identity, user_id })) => {
            delivery.message.properties.user_id = user_id;
            identity
        }
        Ok(None) => None,
        Err(why) => {
            let detail = format!("the signed identity (header {}) {why}", own_headers::IDENTITY);
            return Err(unidentified(Reason::SignatureInvalid, detail));
        }
    };
    match identity {
        Some(identity) => Ok(identity),
        // A copy of one with exactly this number holds some more.
        None if delivery.has_too_many_headers() => Err(too_many()),
        None => identify(&delivery.message, &consumer.name, &consumer.tenant, &consumer.key),
    }
}

/// Reads a delivery's tenant, before it is prepared; `None` if it is unknown.
pub(crate) fn read_tenant(shared: &ConsumerContext, delivery: &Delivery) -> Option<IdentityPart> {
    let (consumer, message) = (&shared.consumer, &delivery.message);
    if message.body.len() > usize::try_from(consumer.max_body).unwrap_or(usize::MAX) {
        return None;
    }
    // A copy that Oncely published for a later try.
    if let Some(HeaderValue::Text(value)) = message.headers.get(own_headers::IDENTITY) {
        let signed =
            shared.keys.current().signing.read_identity(value, &consumer.name, &message.body).ok()?;
        if let Some(identity) = signed.identity {
            return Some(identity.tenant);
        }
    }
    extract::read_value(message, &consumer.tenant)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::ReadingStretch;

    #[test]
    fn other_tasks_run_between_large_bodies_and_not_between_small_ones() {
        let mut read = ReadingStretch::default();
        for _ in 0..1_024 {
            assert_eq!(read.add(1_024).now_or_never(), Some(()));
        }
        assert_eq!(read.add(1).now_or_never(), None, "a mebibyte is read: others first");
        assert_eq!(read.add(0).now_or_never(), Some(()));
        let mut read = ReadingStretch::default();
        assert_eq!(read.add(16 << 20).now_or_never(), Some(()), "nothing is read yet");
        assert_eq!(read.add(16 << 20).now_or_never(), None);
    }
}
