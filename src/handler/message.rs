//! A message, as a handler sees it.

use std::collections::BTreeMap;

use crate::identity::Identity;
use crate::message::{HeaderValue, Properties, RawMessage};

use super::HandlerError;

/// A message on its way into a handler.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) raw: &'a RawMessage,
    /// Which run this is, from 1.
    pub(crate) attempt: u32,
    /// Its body parses as JSON.
    pub(crate) is_json: bool,
}

impl<'a> Message<'a> {
    /// Its idempotency key.
    #[must_use]
    pub fn key(&self) -> &'a str {
        self.identity.key.as_str()
    }

    /// Whose it is; `""` for a consumer without tenants.
    #[must_use]
    pub fn tenant(&self) -> &'a str {
        self.identity.tenant.as_str()
    }

    /// The consumer that takes it.
    #[must_use]
    pub fn consumer(&self) -> &'a str {
        self.identity.consumer.as_str()
    }

    /// Which run this is, from 1. Runs that were rolled back for another message's sake don't count.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The body, byte for byte.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        &self.raw.body
    }

    /// The body as a typed value.
    ///
    /// # Errors
    /// [`HandlerError::Permanent`] when the body is not JSON of that type: another try would not help.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, HandlerError> {
        serde_json::from_slice(&self.raw.body).map_err(|error| HandlerError::permanent(error.to_string()))
    }

    /// The queue it came from.
    #[must_use]
    pub fn queue(&self) -> &'a str {
        &self.raw.queue
    }

    /// The exchange it was published to; `""` for the default exchange.
    #[must_use]
    pub fn exchange(&self) -> &'a str {
        &self.raw.exchange
    }

    /// Its routing key.
    #[must_use]
    pub fn routing_key(&self) -> &'a str {
        &self.raw.routing_key
    }

    /// Its properties.
    #[must_use]
    pub fn properties(&self) -> &'a Properties {
        &self.raw.properties
    }

    /// Its headers.
    #[must_use]
    pub fn headers(&self) -> &'a BTreeMap<String, HeaderValue> {
        &self.raw.headers
    }

    /// The trace id of its W3C `traceparent` header, where it has a valid one.
    #[must_use]
    pub fn trace_id(&self) -> Option<&'a str> {
        self.raw.trace_id()
    }
}
