//! A line of a file: whose message it is, which, and what it says.

use std::collections::BTreeMap;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::amqp::Copy;

/// A message as a line of JSON.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Envelope<'a> {
    tenant: Option<String>,
    message_id: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Its very bytes are the body: numbers keep their spelling, fields their order.
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// What all messages of a file have in common.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) exchange: String,
    pub(super) routing_key: String,
    /// The header that carries a line's tenant.
    pub(super) tenant_header: String,
    /// What a line does not say.
    pub(super) properties: BasicProperties,
}

/// AMQP's limit of a short string.
const SHORT: usize = 255;

impl Envelope<'_> {
    /// The message to publish, or what is wrong with it.
    pub(super) fn message(self, frame: &Frame) -> Result<Copy, String> {
        let Frame { exchange, routing_key, tenant_header, properties } = frame;
        let short = |name: &str, text: &str| match text.len() {
            0..=SHORT => Ok(()),
            length => Err(format!("{name} has {length} bytes; AMQP allows {SHORT}")),
        };
        let mut properties = properties.clone();
        let mut headers: FieldTable = properties.headers().clone().unwrap_or_default();
        for (name, value) in self.headers {
            if name.is_empty() || name.len() > SHORT {
                return Err(format!("a header's name has {} bytes; AMQP allows 1 to {SHORT}", name.len()));
            }
            if name.eq_ignore_ascii_case("content-type") {
                short("content-type", &value)?;
                properties = properties.with_content_type(value.into());
            } else {
                headers.insert(name.into(), AMQPValue::LongString(value.into()));
            }
        }
        if let Some(tenant) = self.tenant {
            headers.insert(tenant_header.as_str().into(), AMQPValue::LongString(tenant.into()));
        }
        if let Some(id) = self.message_id {
            short("message_id", &id)?;
            properties = properties.with_message_id(id.into());
        }
        if let Some(kind) = self.kind {
            short("type", &kind)?;
            properties = properties.with_type(kind.into());
        }
        Ok(Copy {
            exchange: exchange.clone(),
            routing_key: routing_key.clone(),
            properties: properties.with_headers(headers),
            body: self.payload.get().as_bytes().to_vec().into(),
        })
    }
}
