//! A message, as a handler sees it.

use std::collections::BTreeMap;

use oncely_core::identity::Identity;
use oncely_core::message::{HeaderValue, Properties, RawMessage};

use super::HandlerError;

/// A message that a handler gets.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    #[doc(hidden)]
    pub identity: &'a Identity,
    #[doc(hidden)]
    pub raw: &'a RawMessage,
    /// Number of this run, from 1.
    #[doc(hidden)]
    pub attempt: u32,
    /// Whether its body is JSON.
    #[doc(hidden)]
    pub is_json: bool,
}

impl<'a> Message<'a> {
    /// Returns the message's idempotency key.
    #[must_use]
    pub fn key(&self) -> &'a str {
        self.identity.key.as_str()
    }

    /// Returns the message's tenant; `""` for a consumer without tenants.
    #[must_use]
    pub fn tenant(&self) -> &'a str {
        self.identity.tenant.as_str()
    }

    /// Returns the name of the consumer that handles the message.
    #[must_use]
    pub fn consumer(&self) -> &'a str {
        self.identity.consumer.as_str()
    }

    /// Returns the number of this run of the message, from 1. Runs that were rolled back because of another message don't count.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the message's body, byte for byte.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        &self.raw.body
    }

    /// Parses the body as JSON of a type.
    ///
    /// # Errors
    /// If the body is not JSON of that type: [`HandlerError::Permanent`], as another try would not help.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, HandlerError> {
        // The error's own text may quote the body.
        serde_json::from_slice(&self.raw.body).map_err(|error| {
            let (type_name, line, column) = (std::any::type_name::<T>(), error.line(), error.column());
            HandlerError::permanent(format!(
                "the body is no JSON of {type_name}: line {line}, column {column}"
            ))
        })
    }

    /// Returns the queue from which the message came.
    #[must_use]
    pub fn queue(&self) -> &'a str {
        &self.raw.queue
    }

    /// Returns the exchange to which the message was published; `""` for the default exchange.
    #[must_use]
    pub fn exchange(&self) -> &'a str {
        &self.raw.exchange
    }

    /// Returns the message's routing key.
    #[must_use]
    pub fn routing_key(&self) -> &'a str {
        &self.raw.routing_key
    }

    /// Returns the message's properties.
    #[must_use]
    pub fn properties(&self) -> &'a Properties {
        &self.raw.properties
    }

    /// Returns the message's headers.
    #[must_use]
    pub fn headers(&self) -> &'a BTreeMap<String, HeaderValue> {
        &self.raw.headers
    }

    /// Returns the trace id of the message's W3C `traceparent` header; `None` without a valid one.
    #[must_use]
    pub fn trace_id(&self) -> Option<&'a str> {
        self.raw.trace_id()
    }
}
