//! The copy of a dead letter that runs again.

use std::sync::Arc;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::FieldTable;

use crate::amqp::{Copy, Topology, put, restore_headers, restore_properties, without_deaths, without_ours};
use crate::encryption::{Cipher, CipherError};
use crate::identity::{Identity, IdentityPart};
use crate::letter::Letter;
use crate::own_headers;
use crate::pg::StoredMessage;
use crate::signing::SigningKeys;

/// Whose message it is, by its row.
pub(crate) struct Owner<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) consumer: &'a str,
    pub(crate) key: &'a str,
    pub(crate) user_id: Option<&'a str>,
    /// A client of the SQL protocol has stored it: its queue need not have the exchanges that a worker's queue has.
    pub(crate) from_client: bool,
    pub(crate) letter: Letter,
}

/// A copy for the exchange that leads to this one queue: not the exchange that it came through, which may lead to others'
/// queues too. With its own routing key; with its identity, and the user that the broker once checked, signed; without
/// anything that we wrote on it.
pub(crate) fn returned(
    signing_keys: &SigningKeys,
    owner: &Owner<'_>,
    queue: &str,
    routing_key: &str,
    properties: &BasicProperties,
    headers: &FieldTable,
    body: Bytes,
) -> anyhow::Result<Copy> {
    let mut headers = without_deaths(&without_ours(headers));
    let part = |text: &str| IdentityPart::new(text.as_bytes());
    let consumer = part(owner.consumer)?;
    let signature = match (owner.tenant, owner.key, owner.user_id) {
        ("", _, user_id) | (_, "", user_id) => {
            user_id.and_then(|user_id| signing_keys.sign_user(&consumer, user_id, &body))
        }
        (tenant, key, user_id) => {
            let identity = Identity { tenant: part(tenant)?, consumer, key: part(key)? };
            signing_keys.sign_identity(&identity, user_id, &body)
        }
    };
    if let Some(signature) = signature {
        put(&mut headers, own_headers::IDENTITY, &signature);
    }
    if owner.tenant.is_empty() || owner.key.is_empty() {
        // Nothing else tells the worker that it is this one that comes back.
        put(&mut headers, own_headers::LETTER, &owner.letter.to_string());
        put(&mut headers, own_headers::LETTER_MARK, &signing_keys.mark(owner.letter, owner.tenant, &body));
    }
    let (exchange, routing_key) = if owner.from_client {
        put(&mut headers, own_headers::ROUTING_KEY, routing_key);
        (String::new(), queue)
    } else {
        (Topology::return_exchange(queue), routing_key)
    };
    Ok(Copy::of(properties, headers, exchange, routing_key.to_owned(), body))
}

/// Where the copy of a letter comes from.
pub(crate) enum Held {
    /// Its row holds it whole.
    InRow(Box<Copy>),
    /// Only the queue has it; or the row has it in a form that this process can't read, and why.
    InQueue(Option<CipherError>),
}

/// The copy of a message as its row holds it.
pub(crate) fn stored(
    signing_keys: &SigningKeys,
    cipher: Option<&Arc<dyn Cipher>>,
    message: &StoredMessage,
) -> anyhow::Result<Held> {
    let body = match message.body(cipher) {
        Ok(body) => body,
        Err(error) => return Ok(Held::InQueue(Some(error))),
    };
    let (Some(body), Some(properties)) = (body, &message.properties) else {
        return Ok(Held::InQueue(None));
    };
    let unreadable = || anyhow::anyhow!("the row of {} can't be read as a message", message.id);
    let json = |text: &str| serde_json::from_str(text).ok();
    let properties = json(properties).as_ref().and_then(restore_properties).ok_or_else(unreadable)?;
    let headers = match &message.headers {
        Some(headers) => json(headers).as_ref().and_then(restore_headers).ok_or_else(unreadable)?,
        None => FieldTable::default(),
    };
    let user_id = properties.user_id().as_ref().map(|user_id| user_id.as_str());
    let letter = Letter { id: message.id, generation: u32::try_from(message.generation).unwrap_or(0) };
    let owner = Owner {
        tenant: &message.tenant,
        consumer: &message.consumer,
        key: &message.key,
        user_id,
        from_client: message.from_client,
        letter,
    };
    let body = Bytes::from(body.into_owned());
    returned(signing_keys, &owner, &message.queue, &message.routing_key, &properties, &headers, body)
        .map(|copy| Held::InRow(Box::new(copy)))
}
