//! One delivery: a message, and the channel that it came on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use chrono::DateTime;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray, FieldTable, ShortString};

use super::budget::{Budget, Share};
use super::channel_life::{ChannelLife, Parked};
use super::copy::{Copy, short};
use super::headers::{table_size, values};
use crate::message::{HeaderValue, Properties, RawMessage};

/// A message as handed over, with the life of the channel that it came on.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    /// The message.
    pub(crate) message: RawMessage,
    /// Its properties as they came, for a copy that keeps them all.
    pub(crate) properties: BasicProperties,
    /// Its number on its channel.
    pub(crate) tag: u64,
    /// The channel's life: a tag means nothing on another channel.
    pub(crate) channel: Arc<ChannelLife>,
    /// Values in all of its headers.
    pub(crate) header_values: usize,
    /// When it came.
    pub(crate) arrived: Instant,
    /// How often the broker had been asked anew when it came.
    round: u32,
    /// It waits, and takes nothing from the prefetch once the broker is asked anew.
    parked: Option<Arc<Parked>>,
    /// Of what the consumer may hold.
    _share: Arc<Share>,
}

/// Of a delivery with an empty body.
const OVERHEAD: usize = 1 << 10;

/// Of each value in the headers, in both forms, whatever its size on the wire. Collections have room for twice what is in them.
const VALUE: usize = 2 * (size_of::<(ShortString, AMQPValue)>() + size_of::<(String, HeaderValue)>());

impl Delivery {
    pub(crate) fn new(
        delivery: lapin::message::Delivery,
        queue: &str,
        channel: Arc<ChannelLife>,
        budget: &Budget,
    ) -> Box<Self> {
        let tag = delivery.delivery_tag;
        // The headers are kept as they came, and in a readable form.
        let (header_values, headers) = match delivery.properties.headers() {
            Some(headers) => {
                let count = values(headers);
                (count, 2 * table_size(headers) + count * VALUE)
            }
            None => (0, 0),
        };
        let share = budget.take(delivery.data.len() + headers + OVERHEAD);
        let (message, properties) = read(delivery, queue);
        let (arrived, round) = (Instant::now(), channel.round());
        // Half a kilobyte that moves from hand to hand.
        Box::new(Self {
            message,
            properties,
            tag,
            channel,
            header_values,
            arrived,
            round,
            parked: None,
            _share: share,
        })
    }

    /// It waits, for its time or for its copy.
    pub(crate) fn park(&mut self) {
        self.parked.get_or_insert_with(|| Arc::new(self.channel.park(self.round)));
    }

    /// It is worked on again.
    pub(crate) fn unpark(&mut self) {
        self.parked = None;
    }

    /// A message as a broker would deliver it from `queue`, with this number. No broker is told what becomes of it.
    pub(crate) fn without_broker(
        message: Copy,
        queue: &str,
        redelivered: bool,
        tag: u64,
    ) -> Result<Box<Self>, String> {
        let exchange = short("the exchange", &message.exchange)?;
        let routing_key = short("the routing key", &message.routing_key)?;
        let mut delivery =
            lapin::message::Delivery::mock(tag, exchange, routing_key, redelivered, message.body.into());
        delivery.properties = message.properties;
        Ok(Self::new(delivery, queue, Arc::new(ChannelLife::without_broker()), &Budget::new(usize::MAX)))
    }
}

/// The message of a delivery, and its properties as they came.
pub(crate) fn read(delivery: lapin::message::Delivery, queue: &str) -> (RawMessage, BasicProperties) {
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
                // PostgreSQL's last year; a timestamp in milliseconds by mistake is left out, not an error.
                .filter(|seconds| *seconds < 9_000_000_000_000)
                .and_then(|seconds| DateTime::from_timestamp(seconds, 0)),
        },
        headers: properties.headers().as_ref().map(table).unwrap_or_default(),
    };
    (message, properties)
}

fn table(table: &FieldTable) -> BTreeMap<String, HeaderValue> {
    // Of several entries of one name the last one counts: lapin's table is a map.
    table.inner().iter().map(|(name, value)| (name.as_str().to_owned(), header(value))).collect()
}

fn header(value: &AMQPValue) -> HeaderValue {
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
        AMQPValue::FieldArray(values) => HeaderValue::Array(array(values)),
        AMQPValue::Timestamp(seconds) => HeaderValue::Timestamp(*seconds),
        AMQPValue::FieldTable(inner) => HeaderValue::Table(table(inner)),
        AMQPValue::Void => HeaderValue::Void,
    }
}

fn array(values: &FieldArray) -> Vec<HeaderValue> {
    values.as_slice().iter().map(header).collect()
}
