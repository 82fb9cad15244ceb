//! One case: what is published, what must become of it.

use std::collections::BTreeMap;

use anyhow::Context as _;
use toml::{Table, Value};

use super::notation::{bytes, entries, nothing_left, timestamp, unhex};
use super::{CorpusConsumer, text_of};
use crate::RawProperties;
use crate::raw::TEXTS;

/// A message to publish.
#[derive(Clone, Debug)]
pub struct Posting {
    /// The consumer whose queue it goes to.
    pub consumer: String,
    /// Names it among the messages of its consumer.
    pub routing_key: Vec<u8>,
    /// Its properties.
    pub properties: RawProperties,
    /// Its properties as they are sent; not always what [`Posting::properties`] says.
    pub wire: Vec<u8>,
    /// Its body.
    pub body: Vec<u8>,
}

/// A message, and what must become of it.
#[derive(Clone, Debug)]
pub struct Case {
    /// B1 to B4.
    pub part: String,
    /// Its name.
    pub name: String,
    /// What is published before it, and what must become of that.
    pub first: Option<(Posting, String)>,
    /// What is published.
    pub message: Posting,
    /// `completed`, `duplicate`, a reason code, `expired`, or `refused` with AMQP's code.
    pub want: String,
    /// The tenant under which it takes effect.
    pub tenant_is: Option<Vec<u8>>,
    /// The key under which it takes effect.
    pub key_is: Option<Vec<u8>>,
    /// What the handler sees of the body.
    pub payload: Option<Payload>,
    /// What the handler sees of other columns; `None` is null.
    pub sees: BTreeMap<String, Option<String>>,
    /// Headers that its dead letter has no room for.
    pub left_out: Vec<String>,
    /// Which run of the handler it is.
    pub attempt: Option<i64>,
    /// Can be among a hundred others.
    pub crowd: bool,
}

/// What a handler sees of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// SQL's null.
    Null,
    /// Something.
    Any,
    /// This JSON.
    Is(String),
}

/// What else describes a message.
const MESSAGE: [&str; 9] = [
    "headers",
    "more",
    "priority",
    "delivery_mode",
    "timestamp",
    "body",
    "routing_key",
    "properties_hex",
    "headers_hex",
];

impl Case {
    pub(super) fn new(
        part: &str,
        consumer: &str,
        name: String,
        table: &Table,
        consumers: &BTreeMap<String, CorpusConsumer>,
    ) -> anyhow::Result<Self> {
        let expectations = [
            "name",
            "want",
            "first",
            "tenant_is",
            "key_is",
            "payload",
            "sees",
            "left_out",
            "attempt",
            "crowd",
        ];
        nothing_left(table, &[&TEXTS[..], &MESSAGE, &expectations].concat())?;
        let own = consumers.get(consumer).context("no such consumer")?;
        let expected = |field: &str| table.get(field).map(|value| bytes(value, &name)).transpose();
        let first = table.get("first").and_then(Value::as_table).map(|first| {
            nothing_left(first, &[&TEXTS[..], &MESSAGE, &["consumer", "want"]].concat())?;
            let to = first.get("consumer").and_then(Value::as_str).unwrap_or(consumer);
            let good = &consumers.get(to).context("no such consumer")?.good;
            let want = first.get("want").and_then(Value::as_str).unwrap_or("completed").to_owned();
            anyhow::Ok((posting(to, &name, &format!("{name}, before"), good, first)?, want))
        });
        let payload = match table.get("payload") {
            None => None,
            Some(Value::Boolean(false)) => Some(Payload::Null),
            Some(Value::Boolean(true)) => Some(Payload::Any),
            Some(value) => Some(Payload::Is(value.as_str().context("payload is a text")?.to_owned())),
        };
        let sees = match table.get("sees").and_then(Value::as_table) {
            None => BTreeMap::new(),
            Some(sees) => {
                sees.iter().map(|(name, value)| (name.clone(), value.as_str().map(str::to_owned))).collect()
            }
        };
        let left_out = table.get("left_out").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        Ok(Self {
            part: part.to_owned(),
            first: first.transpose()?,
            message: posting(consumer, &name, &name, &own.good, table)?,
            want: text_of(table, "want")?,
            tenant_is: expected("tenant_is")?,
            key_is: expected("key_is")?,
            payload,
            sees,
            left_out: left_out.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            attempt: table.get("attempt").and_then(Value::as_integer),
            crowd: own.crowd && table.get("crowd").and_then(Value::as_bool).unwrap_or(true),
            name,
        })
    }
}

impl Case {
    /// As a broker from RabbitMQ 4 on passes it on.
    pub(super) fn keep_first_headers(&mut self) {
        let first = self.first.as_mut().map(|(posting, _)| posting);
        for posting in first.into_iter().chain([&mut self.message]) {
            posting.properties.keep_first_headers();
        }
    }
}

impl Posting {
    /// Its routing key as whoever reads it through a client library of UTF-8 sees it.
    #[must_use]
    pub fn routing_key_seen(&self) -> String {
        as_text(&self.routing_key)
    }
}

/// Bytes as text: what is not UTF-8 becomes NUL, as in Oncely's AMQP client.
#[must_use]
pub fn as_text(bytes: &[u8]) -> String {
    let parts = bytes.utf8_chunks();
    parts.flat_map(|part| [part.valid(), if part.invalid().is_empty() { "" } else { "\0" }]).collect()
}

/// The good message, changed.
pub(super) fn posting(
    consumer: &str,
    key: &str,
    routing_key: &str,
    good: &Table,
    change: &Table,
) -> anyhow::Result<Posting> {
    let get = |name: &str| change.get(name).or_else(|| good.get(name)).filter(|v| v.as_bool() != Some(false));
    let mut properties = RawProperties::default();
    for name in TEXTS {
        if let Some(value) = get(name)
            && let Some(text) = properties.text_mut(name)
        {
            *text = Some(bytes(value, key)?);
        }
    }
    properties.headers = get("headers").map(|value| entries(value, key)).transpose()?;
    if let Some(more) = get("more") {
        properties.headers.get_or_insert_default().extend(entries(more, key)?);
    }
    let byte = |value: &Value| anyhow::Ok(u8::try_from(value.as_integer().context("a number is needed")?)?);
    properties.priority = get("priority").map(byte).transpose()?;
    if change.contains_key("delivery_mode") {
        properties.delivery_mode = get("delivery_mode").map(byte).transpose()?;
    }
    properties.timestamp = get("timestamp").map(timestamp).transpose()?;
    let mut wire = properties.encode();
    let verbatim = ["properties_hex", "headers_hex"].iter().any(|name| get(name).is_some());
    if let Some(hex) = get("properties_hex").and_then(Value::as_str) {
        wire = unhex(hex)?;
    }
    if let Some(hex) = get("headers_hex").and_then(Value::as_str) {
        let inside = unhex(hex)?;
        wire = vec![1 << 5, 0];
        wire.extend(u32::try_from(inside.len())?.to_be_bytes());
        wire.extend(inside);
    }
    if verbatim {
        // What the broker makes nothing of, nobody sees.
        let nothing = || RawProperties { delivery_mode: None, ..RawProperties::default() };
        properties = RawProperties::decode(&wire).unwrap_or_else(|_| nothing());
    }
    Ok(Posting {
        consumer: consumer.to_owned(),
        routing_key: get("routing_key").map_or(Ok(routing_key.into()), |value| bytes(value, key))?,
        properties,
        wire,
        body: get("body").map(|value| bytes(value, key)).transpose()?.unwrap_or_default(),
    })
}
