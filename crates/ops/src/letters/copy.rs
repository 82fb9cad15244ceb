//! The copy of a dead letter that runs again.

use std::sync::Arc;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::FieldTable;

use oncely_amqp::{Copy, Topology, put, restore_headers, restore_properties, without_deaths, without_ours};
use oncely_core::encryption::{Cipher, CipherError};
use oncely_core::identity::{Identity, IdentityPart};
use oncely_core::letter::Letter;
use oncely_core::own_headers;
use oncely_core::signing::SigningKeys;
use oncely_postgres::StoredMessage;

/// Identity of the message, from its row.
pub(crate) struct Owner<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) consumer: &'a str,
    pub(crate) key: &'a str,
    pub(crate) user_id: Option<&'a str>,
    /// A client of the SQL protocol has stored it: its queue need not have the exchanges of a worker's queue.
    pub(crate) from_client: bool,
    pub(crate) letter: Letter,
}

/// Returns a copy for the exchange that leads to this queue only: not the original exchange, which may lead to queues of others, too. It
/// keeps its routing key; its identity, and the user that the broker has checked, are signed; headers that Oncely wrote are removed.
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
        // Only these headers identify the letter to the worker.
        put(&mut headers, own_headers::LETTER, &owner.letter.to_string());
        put(&mut headers, own_headers::LETTER_MARK, &signing_keys.mark(owner.letter, owner.tenant, &body));
    }
    let (exchange, routing_key) = if owner.from_client {
        put(&mut headers, own_headers::ROUTING_KEY, routing_key);
        (String::new(), queue)
    } else {
        (Topology::return_exchange(queue), routing_key)
    };
    Ok(Copy::from_original(properties, headers, exchange, routing_key.to_owned(), body))
}

/// The place of a letter's message.
pub(crate) enum CopySource {
    /// Its row has the whole message.
    InRow(Box<Copy>),
    /// Only the queue has it; or the row's form can't be read by this process, with the reason.
    InQueue(Option<CipherError>),
}

/// Returns the copy of a message from its row.
pub(crate) fn stored(
    signing_keys: &SigningKeys,
    cipher: Option<&Arc<dyn Cipher>>,
    message: &StoredMessage,
) -> anyhow::Result<CopySource> {
    let body = match message.body(cipher) {
        Ok(body) => body,
        Err(error) => return Ok(CopySource::InQueue(Some(error))),
    };
    let (Some(body), Some(properties)) = (body, &message.properties) else {
        return Ok(CopySource::InQueue(None));
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
        .map(|copy| CopySource::InRow(Box::new(copy)))
}
