//! Copies of a message, for another queue or another time.

use std::collections::BTreeMap;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use oncely_core::own_headers;

/// A message to publish.
#[derive(Clone, Debug)]
pub struct Copy {
    pub exchange: String,
    pub routing_key: String,
    pub properties: BasicProperties,
    pub body: Bytes,
}

/// Headers of RabbitMQ's record of earlier dead-letterings.
const DEATH_HEADERS: [&str; 7] = [
    "x-death",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
];

/// Leaves RabbitMQ's record of dead-letterings out of headers. RabbitMQ drops an expired message that has been in its target queue
/// before, so with an earlier record a copy would vanish on its way back.
pub fn strip_deaths(headers: &FieldTable) -> FieldTable {
    filter_headers(headers, |name| !DEATH_HEADERS.contains(&name))
}

/// Leaves the headers with these names out.
pub fn strip_headers(headers: &FieldTable, names: &[&str]) -> FieldTable {
    filter_headers(headers, |name| !names.contains(&name))
}

/// Leaves Oncely's own headers out, and keeps the publisher's.
pub fn strip_own_headers(headers: &FieldTable) -> FieldTable {
    // Headers that were not decoded are the only copy of the publisher's headers, so they are kept.
    filter_headers(headers, |name| {
        name == own_headers::UNREAD || !name.starts_with("x-oncely-") && name != own_headers::RUNG
    })
}

fn filter_headers(headers: &FieldTable, is_kept: impl Fn(&str) -> bool) -> FieldTable {
    let entries = headers.inner().iter().filter(|(name, _)| is_kept(name.as_str()));
    entries.map(|(name, value)| (name.clone(), value.clone())).collect::<BTreeMap<_, _>>().into()
}

/// Sets a header to a text.
pub fn put_header(headers: &mut FieldTable, name: &str, value: &str) {
    headers.insert(name.into(), AMQPValue::LongString(value.into()));
}

/// Returns a header's text; `None` if the header is missing or is no text.
pub fn header<'a>(headers: Option<&'a FieldTable>, name: &str) -> Option<&'a str> {
    match headers?.inner().get(name)? {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok(),
        _ => None,
    }
}

/// Converts a text to AMQP's short string.
///
/// # Errors
/// If the text is too long. The message begins with the name of the text.
pub fn to_short_string(name: &str, text: &str) -> Result<ShortString, String> {
    ShortString::try_new(text).map_err(|_| format!("{name} has {} bytes; AMQP allows 255", text.len()))
}

/// Header names of a publisher's further routing keys, which the broker applies, also with the default exchange.
const ROUTING_HEADERS: [&str; 2] = ["CC", "BCC"];

/// The direct reply queue of its publisher's channel: the broker refuses it on another channel.
const DIRECT_REPLY_QUEUE: &str = "amq.rabbitmq.reply-to";

impl Copy {
    /// Creates a durable copy with the original's body, routing key and properties, except those that the broker would apply or refuse:
    /// `user_id`, which it would check against Oncely's user; `expiration`, which would let a waiting or dead letter vanish; `CC` and
    /// `BCC`, which would route the copy to queues that its publisher names (of two headers of one name the broker has read the first,
    /// Oncely the second); an unresolved direct reply-to.
    pub fn from_original(
        original: &BasicProperties,
        headers: FieldTable,
        exchange: String,
        routing_key: String,
        body: Bytes,
    ) -> Self {
        let headers = strip_headers(&headers, &ROUTING_HEADERS);
        let mut copied = BasicProperties::default().with_headers(headers).with_delivery_mode(2);
        macro_rules! keep {
            ($($property:ident => $with:ident),+) => {
                $(if let Some(value) = original.$property().clone() {
                    copied = copied.$with(value);
                })+
            };
        }
        keep!(
            content_type => with_content_type,
            content_encoding => with_content_encoding,
            priority => with_priority,
            correlation_id => with_correlation_id,
            message_id => with_message_id,
            timestamp => with_timestamp,
            kind => with_type,
            app_id => with_app_id,
            cluster_id => with_cluster_id
        );
        if let Some(reply_to) = original.reply_to().clone().filter(|name| name.as_str() != DIRECT_REPLY_QUEUE)
        {
            copied = copied.with_reply_to(reply_to);
        }
        Self { exchange, routing_key, properties: copied, body }
    }
}
