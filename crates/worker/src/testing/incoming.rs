//! A message to deliver.

use chrono::{DateTime, Utc};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use serde_json::Value;

use oncely_amqp::{Copy, Delivery, to_short_string};

/// A message as a publisher sends it.
///
/// ```
/// use oncely::testing::IncomingMessage;
/// use serde_json::json;
///
/// let message = IncomingMessage::json(&json!({ "order": "1182", "amount": 20 }))
///     .message_id("order-1182")
///     .header("x-tenant-id", "acme");
/// ```
#[derive(Clone, Debug)]
pub struct IncomingMessage {
    body: Vec<u8>,
    exchange: String,
    /// Default: the name of the queue.
    routing_key: Option<String>,
    /// Default: the consumer's first queue.
    queue: Option<String>,
    headers: Vec<(String, String)>,
    texts: Vec<(TextProperty, String)>,
    timestamp: Option<DateTime<Utc>>,
}

/// A text property.
#[derive(Clone, Copy, Debug)]
enum TextProperty {
    ContentType,
    MessageId,
    CorrelationId,
    ReplyTo,
    Kind,
    UserId,
    AppId,
}

impl IncomingMessage {
    /// Creates a message with these bytes as its body.
    pub fn new(body: impl Into<Vec<u8>>) -> Self {
        Self {
            body: body.into(),
            exchange: String::new(),
            routing_key: None,
            queue: None,
            headers: Vec::new(),
            texts: Vec::new(),
            timestamp: None,
        }
    }

    /// Creates a message with a JSON body and the content type of JSON.
    #[must_use]
    pub fn json(value: &Value) -> Self {
        Self::new(value.to_string()).content_type("application/json")
    }

    /// Sets the property `message_id`.
    #[must_use]
    pub fn message_id(self, id: impl Into<String>) -> Self {
        self.with_text(TextProperty::MessageId, id)
    }

    /// Adds a text header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the exchange that it is published to; by default the default exchange.
    #[must_use]
    pub fn exchange(mut self, name: impl Into<String>) -> Self {
        self.exchange = name.into();
        self
    }

    /// Sets the routing key; by default the name of the queue.
    #[must_use]
    pub fn routing_key(mut self, key: impl Into<String>) -> Self {
        self.routing_key = Some(key.into());
        self
    }

    /// Sets the queue that it is delivered from; by default the consumer's first.
    #[must_use]
    pub fn queue(mut self, name: impl Into<String>) -> Self {
        self.queue = Some(name.into());
        self
    }

    /// Sets the property `content_type`.
    #[must_use]
    pub fn content_type(self, name: impl Into<String>) -> Self {
        self.with_text(TextProperty::ContentType, name)
    }

    /// Sets the property `correlation_id`.
    #[must_use]
    pub fn correlation_id(self, id: impl Into<String>) -> Self {
        self.with_text(TextProperty::CorrelationId, id)
    }

    /// Sets the property `reply_to`.
    #[must_use]
    pub fn reply_to(self, queue: impl Into<String>) -> Self {
        self.with_text(TextProperty::ReplyTo, queue)
    }

    /// Sets the property `type`.
    #[must_use]
    pub fn kind(self, kind: impl Into<String>) -> Self {
        self.with_text(TextProperty::Kind, kind)
    }

    /// Sets the property `user_id`, as a broker accepts it.
    #[must_use]
    pub fn user_id(self, name: impl Into<String>) -> Self {
        self.with_text(TextProperty::UserId, name)
    }

    /// Sets the property `app_id`.
    #[must_use]
    pub fn app_id(self, name: impl Into<String>) -> Self {
        self.with_text(TextProperty::AppId, name)
    }

    /// Sets the property `timestamp`, to the second.
    #[must_use]
    pub fn timestamp(mut self, at: DateTime<Utc>) -> Self {
        self.timestamp = Some(at);
        self
    }

    fn with_text(mut self, property: TextProperty, value: impl Into<String>) -> Self {
        self.texts.push((property, value.into()));
        self
    }

    /// Converts the message to a delivery with this tag. Fails if AMQP can't carry it.
    pub(super) fn to_delivery(
        &self,
        queue: &str,
        redelivered: bool,
        tag: u64,
    ) -> Result<Box<Delivery>, String> {
        let mut headers = FieldTable::default();
        for (name, value) in &self.headers {
            let value = AMQPValue::LongString(value.as_str().into());
            headers.insert(to_short_string("the name of a header", name)?, value);
        }
        let mut properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
        for (property, value) in &self.texts {
            properties = match property {
                TextProperty::ContentType => {
                    properties.with_content_type(to_short_string("content_type", value)?)
                }
                TextProperty::MessageId => properties.with_message_id(to_short_string("message_id", value)?),
                TextProperty::CorrelationId => {
                    properties.with_correlation_id(to_short_string("correlation_id", value)?)
                }
                TextProperty::ReplyTo => properties.with_reply_to(to_short_string("reply_to", value)?),
                TextProperty::Kind => properties.with_type(to_short_string("type", value)?),
                TextProperty::UserId => properties.with_user_id(to_short_string("user_id", value)?),
                TextProperty::AppId => properties.with_app_id(to_short_string("app_id", value)?),
            };
        }
        if let Some(at) = self.timestamp {
            let seconds = u64::try_from(at.timestamp()).map_err(|_| "the timestamp is before 1970")?;
            properties = properties.with_timestamp(seconds);
        }
        let queue = self.queue.as_deref().unwrap_or(queue);
        let message = Copy {
            exchange: self.exchange.clone(),
            routing_key: self.routing_key.clone().unwrap_or_else(|| queue.to_owned()),
            properties,
            body: self.body.clone().into(),
        };
        Delivery::without_broker(message, queue, redelivered, tag)
    }
}
