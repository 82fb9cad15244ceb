//! What is published: payments of 300 bytes.

use std::time::{SystemTime, UNIX_EPOCH};

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use serde::Deserialize;
use uuid::Uuid;

/// Length of a body in bytes.
const BYTES: usize = 300;
/// How many tenants send.
const TENANTS: u32 = 16;

/// A message on its way to the broker.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) properties: BasicProperties,
    pub(crate) body: Vec<u8>,
}

impl Outgoing {
    /// The same with the properties and the header that the relay gives an event.
    pub(crate) fn into_event(self) -> Self {
        let mut headers = FieldTable::default();
        let id = self.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
        headers.insert("x-oncely-event".into(), AMQPValue::LongString(id.into()));
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let properties =
            self.properties.with_headers(headers).with_timestamp(seconds).with_app_id("oncely".into());
        Self { properties, ..self }
    }
}

/// Always the same payments for the same seed, so that they can be published a second time.
#[derive(Clone, Debug)]
pub(crate) struct Payments {
    random: fastrand::Rng,
    number: u64,
    /// Each so many-th has an amount that the handler rejects; 0 for none.
    poison_every: u64,
    /// Of ten payments, how many have such an amount.
    negative_of_ten: u64,
}

impl Payments {
    pub(crate) fn new(seed: u64, poison_every: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), number: 0, poison_every, negative_of_ten: 0 }
    }

    /// Gives that many of ten payments a negative amount.
    pub(crate) fn with_negative(self, of_ten: u64) -> Self {
        Self { negative_of_ten: of_ten, ..self }
    }

    /// Identity of the next payment: random, as a publisher's message ids are.
    pub(crate) fn next_identity(&mut self) -> (String, String) {
        let mut bytes = [0; 16];
        self.random.fill(&mut bytes);
        let tenant = format!("tenant-{:02}", self.random.u32(0..TENANTS));
        (tenant, uuid::Builder::from_random_bytes(bytes).into_uuid().to_string())
    }

    /// Returns whether the last payment has an amount that the handler rejects or refuses.
    pub(crate) fn last_is_negative(&self) -> bool {
        self.poison_every > 0 && self.number.is_multiple_of(self.poison_every)
            || self.number % 10 < self.negative_of_ten
    }

    /// The next payment. `sent_at` is in microseconds since 1970.
    pub(crate) fn next(&mut self, sent_at: i64) -> Outgoing {
        let (tenant, key) = self.next_identity();
        self.number += 1;
        let amount = if self.last_is_negative() { -1 } else { self.random.i64(1..1_000_000) };
        let customer = self.random.u32(0..1_000);
        let mut body = format!(
            r#"{{"payment":"{key}","customer":{customer},"amount":{amount},"currency":"EUR","sent_at":{sent_at},"note":""#
        );
        while body.len() < BYTES - 2 {
            body.push('x');
        }
        body.push_str("\"}");
        let mut headers = FieldTable::default();
        headers.insert("x-tenant-id".into(), AMQPValue::LongString(tenant.as_str().into()));
        let properties = BasicProperties::default()
            .with_message_id(key.as_str().into())
            .with_content_type("application/json".into())
            .with_headers(headers)
            .with_delivery_mode(2);
        Outgoing { properties, body: body.into_bytes() }
    }
}

/// A payment as a consumer reads it.
#[derive(Debug, Deserialize)]
pub(crate) struct Payment {
    pub(crate) customer: i32,
    pub(crate) amount: i64,
    pub(crate) currency: String,
    pub(crate) sent_at: i64,
}

/// Now, in microseconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// A fresh id for a worker's row.
pub(crate) fn id() -> Uuid {
    Uuid::now_v7()
}
