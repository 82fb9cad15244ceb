//! Copies of a message, for another queue or another time.

use std::collections::BTreeMap;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use crate::own_headers;

/// A message to publish.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Bytes,
}

/// RabbitMQ's record of earlier dead-letterings.
const BROKER_HEADERS: [&str; 7] = [
    "x-death",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
];

/// The headers without RabbitMQ's record of dead-letterings: it drops an expired message that has been in its target queue
/// before, so with the record of an earlier trip a copy would vanish on its way back.
pub(crate) fn without_deaths(headers: &FieldTable) -> FieldTable {
    keep(headers, |name| !BROKER_HEADERS.contains(&name))
}

/// The headers without some.
pub(crate) fn without(headers: &FieldTable, names: &[&str]) -> FieldTable {
    keep(headers, |name| !names.contains(&name))
}

/// The publisher's headers without what Oncely wrote beside them.
pub(crate) fn without_ours(headers: &FieldTable) -> FieldTable {
    // What was not read is all that there is of them: without it they would look as if there were none.
    keep(headers, |name| {
        name == own_headers::UNREAD || !name.starts_with("x-oncely-") && name != own_headers::RUNG
    })
}

fn keep(headers: &FieldTable, kept: impl Fn(&str) -> bool) -> FieldTable {
    let entries = headers.inner().iter().filter(|(name, _)| kept(name.as_str()));
    entries.map(|(name, value)| (name.clone(), value.clone())).collect::<BTreeMap<_, _>>().into()
}

/// Sets a header to a text.
pub(crate) fn put(headers: &mut FieldTable, name: &str, value: &str) {
    headers.insert(name.into(), AMQPValue::LongString(value.into()));
}

/// A header that is a text.
pub(crate) fn header<'a>(headers: Option<&'a FieldTable>, name: &str) -> Option<&'a str> {
    match headers?.inner().get(name)? {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok(),
        _ => None,
    }
}

/// A text as AMQP's short string, or what is wrong with it.
pub(crate) fn short(what: &str, text: &str) -> Result<ShortString, String> {
    ShortString::try_new(text).map_err(|_| format!("{what} has {} bytes; AMQP allows 255", text.len()))
}

/// A publisher's further routing keys. Exchanges that go by the routing key obey them, the default exchange too.
const FURTHER_ROUTES: [&str; 2] = ["CC", "BCC"];

/// Stands for a queue that only its publisher's channel has: the broker refuses it of anybody else.
const DIRECT_REPLY: &str = "amq.rabbitmq.reply-to";

impl Copy {
    /// The original's body, routing key and properties, without what the broker would act on, or refuse, now that we publish it: no
    /// `user_id`, which it would check against ours; no `expiration`, which would let a waiting or dead letter vanish; no `CC` and `BCC`,
    /// which would lead the copy to queues that its publisher names (of two headers of one name the broker has read the first, and we have
    /// the second); no direct reply-to that is not resolved. Durable, whatever the original was.
    pub(crate) fn of(
        from: &BasicProperties,
        headers: FieldTable,
        exchange: String,
        routing_key: String,
        body: Bytes,
    ) -> Self {
        let headers = without(&headers, &FURTHER_ROUTES);
        let mut to = BasicProperties::default().with_headers(headers).with_delivery_mode(2);
        macro_rules! keep {
            ($($property:ident => $with:ident),+) => {
                $(if let Some(value) = from.$property().clone() {
                    to = to.$with(value);
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
        if let Some(reply_to) = from.reply_to().clone().filter(|name| name.as_str() != DIRECT_REPLY) {
            to = to.with_reply_to(reply_to);
        }
        Self { exchange, routing_key, properties: to, body }
    }
}
