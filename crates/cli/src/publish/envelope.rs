//! A line of a file: a message with its tenant, key and body.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use serde::Deserialize;
use serde_json::value::RawValue;

use oncely_amqp::{Copy, to_short_string};

/// A message as a line of JSON.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Envelope<'a> {
    tenant: Option<String>,
    message_id: Option<String>,
    correlation_id: Option<String>,
    user_id: Option<String>,
    app_id: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    routing_key: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// The body, byte for byte: numbers keep their spelling, fields their order.
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    /// A body that is not JSON, as the text's bytes.
    body: Option<String>,
    /// A body that is not text.
    body_base64: Option<String>,
}

/// Common settings of all messages of a file.
#[derive(Debug)]
pub(crate) struct MessageDefaults {
    pub(crate) exchange: String,
    /// For a line without a routing key.
    pub(crate) routing_key: String,
    /// The header with a line's tenant.
    pub(crate) tenant_header: String,
    /// Properties that a line does not set.
    pub(crate) properties: BasicProperties,
}

impl Envelope<'_> {
    /// Decodes the body, which must have exactly one of three forms.
    fn decode_body(&self) -> Result<Vec<u8>, String> {
        match (&self.payload, &self.body, &self.body_base64) {
            (Some(payload), None, None) => Ok(payload.get().as_bytes().to_vec()),
            (None, Some(text), None) => Ok(text.as_bytes().to_vec()),
            (None, None, Some(encoded)) => {
                BASE64_STANDARD.decode(encoded).map_err(|error| format!("body_base64: {error}"))
            }
            (None, None, None) => Err("there is no payload (JSON), body (text) or body_base64".to_owned()),
            _ => Err("payload, body and body_base64 exclude each other".to_owned()),
        }
    }

    /// Converts the line to a message to publish; the error is the line's.
    pub(super) fn into_message(self, defaults: &MessageDefaults) -> Result<Copy, String> {
        let body = self.decode_body()?;
        let MessageDefaults { exchange, routing_key, tenant_header, properties } = defaults;
        let mut properties = properties.clone();
        let mut headers: FieldTable = properties.headers().clone().unwrap_or_default();
        for (name, value) in self.headers {
            if name.is_empty() || name.len() > 255 {
                return Err(format!("a header's name has {} bytes; AMQP allows 1 to 255", name.len()));
            }
            if name.eq_ignore_ascii_case("content-type") {
                properties = properties.with_content_type(to_short_string("content-type", &value)?);
            } else {
                headers.insert(name.into(), AMQPValue::LongString(value.into()));
            }
        }
        if let Some(tenant) = self.tenant {
            headers.insert(tenant_header.as_str().into(), AMQPValue::LongString(tenant.into()));
        }
        if let Some(id) = self.message_id {
            properties = properties.with_message_id(to_short_string("message_id", &id)?);
        }
        if let Some(id) = self.correlation_id {
            properties = properties.with_correlation_id(to_short_string("correlation_id", &id)?);
        }
        if let Some(user) = self.user_id {
            properties = properties.with_user_id(to_short_string("user_id", &user)?);
        }
        if let Some(app) = self.app_id {
            properties = properties.with_app_id(to_short_string("app_id", &app)?);
        }
        if let Some(kind) = self.kind {
            properties = properties.with_type(to_short_string("type", &kind)?);
        }
        let routing_key = self.routing_key.as_ref().unwrap_or(routing_key);
        to_short_string("routing_key", routing_key)?;
        Ok(Copy {
            exchange: exchange.clone(),
            routing_key: routing_key.clone(),
            properties: properties.with_headers(headers),
            body: body.into(),
        })
    }
}
