//! The copy of a dead letter that runs again.

use std::sync::Arc;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::FieldTable;

use oncely_amqp::{
    Copy, Topology, put_header, restore_headers, restore_properties, strip_deaths, strip_own_headers,
};
use oncely_core::encryption::{Cipher, CipherError};
use oncely_core::identity::{Identity, IdentityPart};
use oncely_core::letter::Letter;
use oncely_core::own_headers;
use oncely_core::signing::SigningKeys;
use oncely_postgres::StoredMessage;

/// Identity of a letter's message, from its row.
pub(crate) struct LetterIdentity<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) consumer: &'a str,
    pub(crate) key: &'a str,
    pub(crate) user_id: Option<&'a str>,
    /// A client of the SQL protocol has stored it: its queue need not have the exchanges of a worker's queue.
    pub(crate) from_client: bool,
    pub(crate) letter: Letter,
}

/// Builds a copy of a letter for the exchange that leads to this queue only: not the original exchange, which may lead to queues of others,
/// too. It keeps its routing key; its identity, and the user that the broker has checked, are signed; headers that Oncely wrote are
/// removed.
pub(crate) fn build_copy(
    signing_keys: &SigningKeys,
    identity: &LetterIdentity<'_>,
    queue: &str,
    routing_key: &str,
    properties: &BasicProperties,
    headers: &FieldTable,
    body: Bytes,
) -> anyhow::Result<Copy> {
    let mut headers = strip_deaths(&strip_own_headers(headers));
    let part = |text: &str| IdentityPart::new(text.as_bytes());
    let consumer = part(identity.consumer)?;
    let signature = match (identity.tenant, identity.key, identity.user_id) {
        ("", _, user_id) | (_, "", user_id) => {
            user_id.and_then(|user_id| signing_keys.sign_user_id(&consumer, user_id, &body))
        }
        (tenant, key, user_id) => {
            let identity = Identity { tenant: part(tenant)?, consumer, key: part(key)? };
            signing_keys.sign_identity(&identity, user_id, &body)
        }
    };
    if let Some(signature) = signature {
        put_header(&mut headers, own_headers::IDENTITY, &signature);
    }
    if identity.tenant.is_empty() || identity.key.is_empty() {
        // Only these headers identify the letter to the worker.
        put_header(&mut headers, own_headers::LETTER, &identity.letter.to_string());
        put_header(
            &mut headers,
            own_headers::LETTER_MARK,
            &signing_keys.sign_letter(identity.letter, identity.tenant, &body),
        );
    }
    let (exchange, routing_key) = if identity.from_client {
        put_header(&mut headers, own_headers::ROUTING_KEY, routing_key);
        (String::new(), queue)
    } else {
        (Topology::return_exchange(queue), routing_key)
    };
    Ok(Copy::from_original(properties, headers, exchange, routing_key.to_owned(), body))
}

/// The source of a letter's copy.
pub(crate) enum CopySource {
    /// Its row has the whole message.
    InRow(Box<Copy>),
    /// Only the queue has it; or the row's form can't be read by this process, with the reason.
    InQueue(Option<CipherError>),
}

/// Builds the copy of a letter from its row, as far as the row has the whole message.
///
/// # Errors
/// If the row can't be read as a message.
pub(crate) fn build_stored_copy(
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
    let identity = LetterIdentity {
        tenant: &message.tenant,
        consumer: &message.consumer,
        key: &message.key,
        user_id,
        from_client: message.from_client,
        letter,
    };
    let body = Bytes::from(body.into_owned());
    build_copy(signing_keys, &identity, &message.queue, &message.routing_key, &properties, &headers, body)
        .map(|copy| CopySource::InRow(Box::new(copy)))
}
