//! A message, independent of the broker library's types.

use std::collections::BTreeMap;

use bytes::Bytes;
use chrono::{DateTime, Utc};

use crate::trace_parent::TraceParent;

/// A message as it was delivered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawMessage {
    /// The body, byte for byte.
    pub body: Bytes,
    /// Queue that it came from.
    pub queue: String,
    /// Exchange that it was published to; empty for the default exchange.
    pub exchange: String,
    /// Its routing key.
    pub routing_key: String,
    /// Whether the broker has delivered it before. A hint, not a count.
    pub redelivered: bool,
    /// Its properties.
    pub properties: Properties,
    /// Its headers.
    pub headers: BTreeMap<String, HeaderValue>,
}

impl RawMessage {
    /// Returns the message's W3C trace context; `None` without a valid `traceparent` header.
    #[must_use]
    pub fn trace_parent(&self) -> Option<TraceParent<'_>> {
        let Some(HeaderValue::Text(bytes)) = self.headers.get("traceparent") else {
            return None;
        };
        TraceParent::parse(std::str::from_utf8(bytes).ok()?)
    }

    /// Returns the message's W3C trace id; `None` without a valid `traceparent` header.
    #[must_use]
    pub fn trace_id(&self) -> Option<&str> {
        self.trace_parent().map(|parent| parent.trace_id)
    }

    /// Converts the message's headers to JSON; byte strings that are not UTF-8 are left out.
    #[must_use]
    pub fn headers_json(&self) -> serde_json::Value {
        serde_json::Value::Object(
            self.headers
                .iter()
                .filter(|(name, _)| !name.contains('\0'))
                .filter_map(|(name, value)| Some((name.clone(), value.to_json()?)))
                .collect(),
        )
    }
}

/// Properties of a message (AMQP 0-9-1 basic properties). All are set by the publisher; the broker checks `user_id` only, if it is set.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Properties {
    pub content_type: Option<String>,
    pub content_encoding: Option<String>,
    pub message_id: Option<String>,
    pub correlation_id: Option<String>,
    pub reply_to: Option<String>,
    pub kind: Option<String>,
    pub user_id: Option<String>,
    pub app_id: Option<String>,
    pub timestamp: Option<DateTime<Utc>>,
}

/// A value of a header.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum HeaderValue {
    /// Text or bytes: AMQP does not distinguish them.
    Text(Vec<u8>),
    /// Any of AMQP's integers.
    Integer(i64),
    /// A floating point number or a decimal.
    Float(f64),
    /// A truth value.
    Boolean(bool),
    /// Seconds since 1970.
    Timestamp(u64),
    /// A table.
    Table(BTreeMap<String, HeaderValue>),
    /// An array.
    Array(Vec<HeaderValue>),
    /// No value.
    Void,
}

impl HeaderValue {
    /// Returns the name of the value's type, for an error message.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a fraction",
            Self::Boolean(_) => "a boolean",
            Self::Timestamp(_) => "a timestamp",
            Self::Table(_) => "a table",
            Self::Array(_) => "an array",
            Self::Void => "null",
        }
    }

    /// Converts a header's value to JSON; `None` if it holds bytes that are not UTF-8.
    fn to_json(&self) -> Option<serde_json::Value> {
        use serde_json::Value;
        Some(match self {
            // PostgreSQL's jsonb holds no NUL.
            Self::Text(bytes) if bytes.contains(&0) => return None,
            Self::Text(bytes) => Value::String(std::str::from_utf8(bytes).ok()?.to_owned()),
            Self::Integer(number) => Value::from(*number),
            Self::Float(number) => Value::from(*number),
            Self::Boolean(truth) => Value::Bool(*truth),
            Self::Timestamp(seconds) => Value::from(*seconds),
            Self::Table(table) => Value::Object(
                table
                    .iter()
                    .filter(|(name, _)| !name.contains('\0'))
                    .filter_map(|(name, value)| Some((name.clone(), value.to_json()?)))
                    .collect(),
            ),
            Self::Array(values) => Value::Array(values.iter().filter_map(Self::to_json).collect()),
            Self::Void => Value::Null,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_traceparent(value: &str) -> RawMessage {
        let headers = BTreeMap::from([("traceparent".to_owned(), HeaderValue::Text(value.into()))]);
        RawMessage { headers, ..RawMessage::default() }
    }

    #[test]
    fn the_trace_id_is_taken_from_a_valid_traceparent_only() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(with_traceparent(&format!("00-{id}-00f067aa0ba902b7-01")).trace_id(), Some(id));
        for bad in [
            "",
            "00",
            "00-short-1-01",
            "00-00000000000000000000000000000000-1-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-1-01",
        ] {
            assert_eq!(with_traceparent(bad).trace_id(), None, "{bad}");
        }
    }

    #[test]
    fn headers_that_json_or_jsonb_cannot_hold_are_left_out() {
        let message = RawMessage {
            headers: BTreeMap::from([
                ("good".to_owned(), HeaderValue::Text(b"x".to_vec())),
                ("nul".to_owned(), HeaderValue::Text(b"a\0".to_vec())),
                ("bytes".to_owned(), HeaderValue::Text(vec![0xff])),
                ("number".to_owned(), HeaderValue::Integer(-7)),
                ("n\0l".to_owned(), HeaderValue::Integer(1)),
            ]),
            ..RawMessage::default()
        };
        assert_eq!(message.headers_json(), serde_json::json!({"good": "x", "number": -7}));
    }
}
