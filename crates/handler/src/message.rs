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
    /// Its body parses as JSON.
    #[doc(hidden)]
    pub is_json: bool,
}

impl<'a> Message<'a> {
    /// Returns its idempotency key.
    #[must_use]
    pub fn key(&self) -> &'a str {
        self.identity.key.as_str()
    }

    /// Returns its tenant; `""` for a consumer without tenants.
    #[must_use]
    pub fn tenant(&self) -> &'a str {
        self.identity.tenant.as_str()
    }

    /// Returns the name of the consumer.
    #[must_use]
    pub fn consumer(&self) -> &'a str {
        self.identity.consumer.as_str()
    }

    /// Returns the number of this run, from 1. Runs that were rolled back because of another message don't count.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the body, byte for byte.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        &self.raw.body
    }

    /// Returns the body as a typed value.
    ///
    /// # Errors
    /// [`HandlerError::Permanent`] when the body is not JSON of that type: another try would not help.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, HandlerError> {
        // The error's own text may quote the body.
        serde_json::from_slice(&self.raw.body).map_err(|error| {
            let (wanted, line, column) = (std::any::type_name::<T>(), error.line(), error.column());
            HandlerError::permanent(format!("the body is no JSON of {wanted}: line {line}, column {column}"))
        })
    }

    /// Returns the queue that it came from.
    #[must_use]
    pub fn queue(&self) -> &'a str {
        &self.raw.queue
    }

    /// Returns the exchange that it was published to; `""` for the default exchange.
    #[must_use]
    pub fn exchange(&self) -> &'a str {
        &self.raw.exchange
    }

    /// Returns its routing key.
    #[must_use]
    pub fn routing_key(&self) -> &'a str {
        &self.raw.routing_key
    }

    /// Returns its properties.
    #[must_use]
    pub fn properties(&self) -> &'a Properties {
        &self.raw.properties
    }

    /// Returns its headers.
    #[must_use]
    pub fn headers(&self) -> &'a BTreeMap<String, HeaderValue> {
        &self.raw.headers
    }

    /// Returns the trace id of its W3C `traceparent` header, if it has a valid one.
    #[must_use]
    pub fn trace_id(&self) -> Option<&'a str> {
        self.raw.trace_id()
    }
}
