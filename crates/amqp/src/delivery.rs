//! One delivery: a message and its channel.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use chrono::DateTime;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray, FieldTable};

use super::budget::{Budget, BudgetShare};
use super::channel_life::{ChannelLife, ParkedDelivery};
use super::copy::{Copy, to_short_string};
use super::frames;
use super::headers::{MAX_VALUES, count_values, table_memory, table_size};
use oncely_core::message::{HeaderValue, Properties, RawMessage};
use oncely_core::own_headers;

/// A delivered message, with the lifetime of its channel.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The message.
    pub message: RawMessage,
    /// Its unchanged properties, for a copy that keeps them all.
    pub properties: BasicProperties,
    /// Its number on its channel.
    pub tag: u64,
    /// Its channel: a tag is valid on one channel only.
    pub channel: Arc<ChannelLife>,
    /// Number of values in all of its headers.
    pub header_values: usize,
    /// Time of its arrival.
    pub arrived_at: Instant,
    /// Number of the subscription's renewals at its arrival.
    round: u32,
    /// Set while it waits, so that a renewed subscription does not count it.
    parked: Option<Arc<ParkedDelivery>>,
    /// Its share of the consumer's budget.
    share: Arc<BudgetShare>,
}

/// Bytes counted for a delivery with an empty body.
const OVERHEAD_BYTES: usize = 1 << 10;

/// Headers that RabbitMQ adds to a redelivered message of a quorum queue.
const BROKER_ADDED_HEADERS: [&str; 2] = ["x-delivery-count", "x-acquired-count"];

/// Largest body that may have unused memory behind it.
const MAX_COPIED_BODY: usize = 64 << 10;

/// Maximum number of bytes of a header's decoded form, and of its JSON in a statement, for each byte on the wire: JSON writes a control
/// character as six.
const MAX_DECODED_BYTES_PER_BYTE: usize = 7;

/// Bytes counted for each header value in decoded form, as [`table_memory`] counts them for the received form.
const VALUE_BYTES: usize = 2 * size_of::<(String, HeaderValue)>();

impl Delivery {
    /// Converts a message of the client library, and counts its memory in `budget` until the delivery is dropped: the body, and the headers
    /// both as received and decoded. Never waits, even if the budget is full.
    pub(crate) fn new(
        mut delivery: lapin::message::Delivery,
        queue: &str,
        channel: Arc<ChannelLife>,
        budget: &Budget,
    ) -> Box<Self> {
        let tag = delivery.delivery_tag;
        if delivery.data.len() > MAX_COPIED_BODY {
            // The client reads a body into a buffer of up to twice its size.
            delivery.data.shrink_to_fit();
        }
        // The headers are kept unchanged and in decoded form.
        let (header_values, headers) = match delivery.properties.headers() {
            Some(headers) => {
                let count = count_values(headers);
                (
                    count,
                    table_memory(headers)
                        + MAX_DECODED_BYTES_PER_BYTE * table_size(headers)
                        + count * VALUE_BYTES,
                )
            }
            None => (0, 0),
        };
        let share = budget.take(delivery.data.len() + headers + OVERHEAD_BYTES);
        let (message, properties) = convert_delivery(delivery, queue);
        let (arrived_at, round) = (Instant::now(), channel.round());
        // Boxed, as it has half a kilobyte and is moved often.
        Box::new(Self {
            message,
            properties,
            tag,
            channel,
            header_values,
            arrived_at,
            round,
            parked: None,
            share,
        })
    }

    /// Returns whether the message's headers hold more than [`MAX_VALUES`] values, beside those that Oncely or the broker adds to a
    /// message's copies.
    pub fn has_too_many_headers(&self) -> bool {
        let is_added = |name: &str| own_headers::ALL.contains(&name) || BROKER_ADDED_HEADERS.contains(&name);
        self.header_values > MAX_VALUES
            && self.header_values - self.message.headers.keys().filter(|name| is_added(name)).count()
                > MAX_VALUES
    }

    /// Returns the size in bytes of the message's unread body; `None` if the body was read. A delivery with an unread body can't be
    /// settled: only the broker has the message.
    pub fn unread_body(&self) -> Option<u64> {
        match self.message.headers.get(own_headers::UNREAD_BODY) {
            Some(HeaderValue::Text(mark)) => frames::parse_unread_body(mark),
            _ => None,
        }
    }

    /// Returns the bytes of memory that the delivery holds: the body, and the headers both as received and decoded.
    pub fn size(&self) -> usize {
        self.share.bytes() - OVERHEAD_BYTES
    }

    /// Parks the delivery until its time comes, or its copy has arrived.
    pub fn park(&mut self) {
        self.parked.get_or_insert_with(|| Arc::new(self.channel.park(self.round)));
    }

    /// Ends the parking of the delivery.
    pub fn unpark(&mut self) {
        self.parked = None;
    }

    /// Creates a delivery as a broker would make it from `queue`, with this tag. Nothing is sent to a broker.
    ///
    /// # Errors
    /// If the exchange or the routing key is too long, with a text that names it.
    pub fn without_broker(
        message: Copy,
        queue: &str,
        redelivered: bool,
        tag: u64,
    ) -> Result<Box<Self>, String> {
        let exchange = to_short_string("the exchange", &message.exchange)?;
        let routing_key = to_short_string("the routing key", &message.routing_key)?;
        let mut delivery =
            lapin::message::Delivery::mock(tag, exchange, routing_key, redelivered, message.body.into());
        delivery.properties = message.properties;
        Ok(Self::new(delivery, queue, Arc::new(ChannelLife::without_broker()), &Budget::new(usize::MAX)))
    }
}

/// Converts a delivery of the client library to its message; also returns the unchanged properties.
pub fn convert_delivery(delivery: lapin::message::Delivery, queue: &str) -> (RawMessage, BasicProperties) {
    let properties = delivery.properties;
    let text = |value: Option<lapin::types::ShortString>| value.map(|text| text.as_str().to_owned());
    let message = RawMessage {
        body: delivery.data.into(),
        queue: queue.to_owned(),
        exchange: delivery.exchange.as_str().to_owned(),
        routing_key: delivery.routing_key.as_str().to_owned(),
        redelivered: delivery.redelivered,
        properties: Properties {
            content_type: text(properties.content_type().clone()),
            content_encoding: text(properties.content_encoding().clone()),
            message_id: text(properties.message_id().clone()),
            correlation_id: text(properties.correlation_id().clone()),
            reply_to: text(properties.reply_to().clone()),
            kind: text(properties.kind().clone()),
            user_id: text(properties.user_id().clone()),
            app_id: text(properties.app_id().clone()),
            timestamp: properties
                .timestamp()
                .and_then(|seconds| i64::try_from(seconds).ok())
                // PostgreSQL's last year; a timestamp in milliseconds by mistake is dropped and is no error.
                .filter(|seconds| *seconds < 9_000_000_000_000)
                .and_then(|seconds| DateTime::from_timestamp(seconds, 0)),
        },
        headers: properties.headers().as_ref().map(convert_table).unwrap_or_default(),
    };
    (message, properties)
}

/// Converts a table of headers.
fn convert_table(table: &FieldTable) -> BTreeMap<String, HeaderValue> {
    // Of several entries with one name the last one counts: lapin's table is a map.
    table.inner().iter().map(|(name, value)| (name.as_str().to_owned(), convert_value(value))).collect()
}

/// Converts a header's value. Integers of all sizes become one type, as do texts and bytes.
fn convert_value(value: &AMQPValue) -> HeaderValue {
    match value {
        AMQPValue::Boolean(truth) => HeaderValue::Boolean(*truth),
        AMQPValue::ShortShortInt(number) => HeaderValue::Integer(i64::from(*number)),
        AMQPValue::ShortShortUInt(number) => HeaderValue::Integer(i64::from(*number)),
        AMQPValue::ShortInt(number) => HeaderValue::Integer(i64::from(*number)),
        AMQPValue::ShortUInt(number) => HeaderValue::Integer(i64::from(*number)),
        AMQPValue::LongInt(number) => HeaderValue::Integer(i64::from(*number)),
        AMQPValue::LongUInt(number) => HeaderValue::Integer(i64::from(*number)),
        AMQPValue::LongLongInt(number) => HeaderValue::Integer(*number),
        AMQPValue::Float(number) => HeaderValue::Float(f64::from(*number)),
        AMQPValue::Double(number) => HeaderValue::Float(*number),
        AMQPValue::DecimalValue(decimal) => {
            HeaderValue::Float(f64::from(decimal.value) / 10_f64.powi(i32::from(decimal.scale)))
        }
        AMQPValue::ShortString(text) => HeaderValue::Text(text.as_str().as_bytes().to_vec()),
        AMQPValue::LongString(text) => HeaderValue::Text(text.as_bytes().to_vec()),
        AMQPValue::ByteArray(bytes) => HeaderValue::Text(bytes.as_slice().to_vec()),
        AMQPValue::FieldArray(values) => HeaderValue::Array(convert_array(values)),
        AMQPValue::Timestamp(seconds) => HeaderValue::Timestamp(*seconds),
        AMQPValue::FieldTable(inner) => HeaderValue::Table(convert_table(inner)),
        AMQPValue::Void => HeaderValue::Void,
    }
}

fn convert_array(values: &FieldArray) -> Vec<HeaderValue> {
    values.as_slice().iter().map(convert_value).collect()
}
