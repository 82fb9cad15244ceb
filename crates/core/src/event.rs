//! An event that is published once the transaction of a handler or an application has committed. Pure.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

/// An event for RabbitMQ, to be written by `Context::emit` or `oncely_postgres::emit`.
///
/// ```
/// # use oncely::event::Event;
/// let event = Event::new("orders", "order.paid")
///     .json(&serde_json::json!({ "order": 1182 }))?
///     .ordering_key("order-1182")
///     .header("x-tenant-id", "acme");
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    #[doc(hidden)]
    pub exchange: String,
    #[doc(hidden)]
    pub routing_key: String,
    #[doc(hidden)]
    pub payload: Vec<u8>,
    #[doc(hidden)]
    pub content_type: Option<String>,
    #[doc(hidden)]
    pub headers: Map<String, Value>,
    #[doc(hidden)]
    pub tenant: Option<String>,
    #[doc(hidden)]
    pub message_id: Option<String>,
    #[doc(hidden)]
    pub ordering_key: Option<String>,
    #[doc(hidden)]
    pub delay: Option<Duration>,
    #[doc(hidden)]
    pub kind: Option<String>,
    #[doc(hidden)]
    pub source: Option<String>,
    #[doc(hidden)]
    pub correlation_id: Option<String>,
    #[doc(hidden)]
    pub reply_to: Option<String>,
    #[doc(hidden)]
    pub app_id: String,
}

impl Event {
    /// Creates an event with an empty body. The default exchange is an empty text.
    pub fn new(exchange: impl Into<String>, routing_key: impl Into<String>) -> Self {
        Self {
            exchange: exchange.into(),
            routing_key: routing_key.into(),
            payload: Vec::new(),
            content_type: None,
            headers: Map::new(),
            tenant: None,
            message_id: None,
            ordering_key: None,
            delay: None,
            kind: None,
            source: None,
            correlation_id: None,
            reply_to: None,
            app_id: "oncely".to_owned(),
        }
    }

    /// Sets a JSON body and its content type.
    ///
    /// # Errors
    /// If the value can't be JSON.
    pub fn json<T: Serialize + ?Sized>(mut self, value: &T) -> serde_json::Result<Self> {
        self.payload = serde_json::to_vec(value)?;
        self.content_type = Some("application/json".to_owned());
        Ok(self)
    }

    /// Sets the event's body and its content type.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>, content_type: impl Into<String>) -> Self {
        self.payload = body.into();
        self.content_type = Some(content_type.into());
        self
    }

    /// Adds a header: a text, a whole number, a boolean or null.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Sets the tenant; by default the one of the delivery that caused it, of the claim in the transaction, or the setting `oncely.tenant`
    /// of the role or database. An event without any tenant is refused.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// Sets the `message_id`, the consumer's idempotency key. By default the event's id, which is as stable.
    #[must_use]
    pub fn message_id(mut self, id: impl Into<String>) -> Self {
        self.message_id = Some(id.into());
        self
    }

    /// Sets the ordering key: the event is published after all earlier ones of this key (and tenant), in the order of the commits. Excludes
    /// a delay.
    #[must_use]
    pub fn ordering_key(mut self, key: impl Into<String>) -> Self {
        self.ordering_key = Some(key.into());
        self
    }

    /// Delays the event's publication. Excludes an ordering key.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Sets the property `type`.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Makes the event a CloudEvent in binary mode (headers `cloudEvents:…`), with the attributes `source` and `type`.
    #[must_use]
    pub fn cloud_event(mut self, source: impl Into<String>, kind: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self.kind(kind)
    }

    /// Sets the property `correlation_id`.
    #[must_use]
    pub fn correlation_id(mut self, id: impl Into<String>) -> Self {
        self.correlation_id = Some(id.into());
        self
    }

    /// Sets the property `reply_to`.
    #[must_use]
    pub fn reply_to(mut self, queue: impl Into<String>) -> Self {
        self.reply_to = Some(queue.into());
        self
    }

    /// Sets the property `app_id`; by default `oncely`.
    #[must_use]
    pub fn app_id(mut self, name: impl Into<String>) -> Self {
        self.app_id = name.into();
        self
    }
}
