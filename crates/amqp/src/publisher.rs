//! Publishes copies and reports for each whether it has arrived.

use std::borrow::Borrow;

use lapin::types::AMQPValue;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::connection::AmqpError;
use super::copy::Copy;
use super::headers::{fit_headers, table_memory};
use super::publish_connection::{OutgoingMessage, PublishConnection, PublishLimits, PublishResult};
use oncely_config::RabbitSettings;
use oncely_core::own_headers;

/// Maximum bytes of bodies and headers in flight: they are in memory several times until the socket has sent them.
const MAX_IN_FLIGHT_BYTES: usize = 8 << 20;

/// If a copy is not known to have arrived.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// No queue took it.
    #[error(
        "exchange {0:?} has no queue for it; bind one (`oncely topology apply` does for exchanges of its own)"
    )]
    Unroutable(String),
    /// The broker answered with `basic.nack`.
    #[error("the broker nacked it (is a queue full?)")]
    Nacked,
    /// The broker answers, and did not confirm it within `rabbitmq.timeout`.
    #[error("the broker did not confirm it in time (has its queue a leader?)")]
    Unconfirmed,
    /// Not sent: an earlier copy with its exchange and routing key was not confirmed within `rabbitmq.timeout`.
    #[error("not sent, as the broker did not confirm one before it to the same queue (has that a leader?)")]
    HeldBack,
    /// The broker closed the channel over it.
    #[error("the broker refused it: {1}")]
    Closed(u16, String),
    /// Its headers don't fit into one frame.
    #[error("its headers don't fit into one frame of this broker")]
    HeadersTooLarge,
    /// The broker reads nothing for lack of memory or disk.
    #[error("RabbitMQ takes no messages at present (a memory or disk alarm)")]
    Blocked,
    /// The connection failed: it may have arrived or not.
    #[error(transparent)]
    Amqp(#[from] AmqpError),
}

impl PublishError {
    /// Returns a stable word for the error.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unroutable(_) => "unroutable",
            Self::Nacked => "nacked",
            Self::Unconfirmed => "unconfirmed",
            Self::HeldBack => "held_back",
            Self::Closed(404, _) => "exchange_missing",
            Self::Closed(403, _) => "access_refused",
            Self::Closed(406, _) => "precondition_failed",
            Self::Closed(..) => "channel_closed",
            Self::HeadersTooLarge => "headers_too_large",
            Self::Blocked => "blocked",
            Self::Amqp(_) => "connection",
        }
    }

    /// Returns whether the error concerns this copy only, and was known at once. If not, the connection failed or a queue is silent.
    pub fn is_of_one_copy(&self) -> bool {
        !matches!(self, Self::Blocked | Self::Unconfirmed | Self::HeldBack | Self::Amqp(_))
    }
}

/// Publishes on its own connection, opened when needed.
pub struct Publisher {
    settings: RabbitSettings,
    purpose: String,
    connection: Mutex<Option<PublishConnection>>,
}

impl Publisher {
    pub fn new(settings: RabbitSettings, purpose: String) -> Self {
        Self { settings, purpose, connection: Mutex::new(None) }
    }

    /// Publishes copies and reports for each whether it has arrived: confirmed by the broker *and* accepted by a queue. A confirm alone is
    /// not enough: an unroutable message is confirmed, too. The result of one copy is independent of the others.
    pub async fn publish(&self, copies: &[impl Borrow<Copy>]) -> Vec<Result<(), PublishError>> {
        let mut results = Vec::with_capacity(copies.len());
        let result = self.try_publish(copies, &mut results).await;
        let error = result.err().unwrap_or(PublishError::Nacked);
        results.extend(copies[results.len()..].iter().map(|_| Err(clone_error(&error))));
        results
    }

    /// Publishes copies, and appends a result for each in their order. After an error the remaining copies have no results.
    async fn try_publish(
        &self,
        copies: &[impl Borrow<Copy>],
        results: &mut Vec<Result<(), PublishError>>,
    ) -> Result<(), PublishError> {
        let mut slot = self.connection.lock().await;
        slot.take_if(|connection| !connection.is_open());
        let connection = match &mut *slot {
            Some(connection) => connection,
            None => slot.insert(PublishConnection::open(&self.settings, &self.purpose).await?),
        };
        let limits = PublishLimits { answer_timeout: self.settings.timeout, until: None };
        for wave in split_by_bytes(copies) {
            if connection.is_blocked() {
                return Err(PublishError::Blocked);
            }
            let messages: Vec<OutgoingMessage<'_>> =
                wave.iter().map(|copy| prepare_copy(copy.borrow(), connection.frame_max())).collect();
            let (results_of_part, failure) = connection.publish(&messages, limits).await;
            for (copy, result) in wave.iter().zip(results_of_part) {
                results.push(match (result, &failure) {
                    (Some(result), _) => convert_result(copy.borrow(), result),
                    (None, Some(error)) => Err(clone_amqp(error).into()),
                    (None, None) => Err(PublishError::Unconfirmed),
                });
            }
            if let Some(error) = failure {
                // The next call opens a new connection; a blocked one is kept, as its messages are still in flight.
                slot.take_if(|connection| !connection.is_blocked());
                return Err(error.into());
            }
        }
        Ok(())
    }
}

/// Splits copies into parts of at most [`MAX_IN_FLIGHT_BYTES`], or of one larger copy.
fn split_by_bytes<C: Borrow<Copy>>(copies: &[C]) -> Vec<&[C]> {
    let mut waves = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    for (index, copy) in copies.iter().enumerate() {
        let copy = copy.borrow();
        let size = copy.body.len() + copy.properties.headers().as_ref().map_or(0, table_memory);
        if index > from && bytes + size > MAX_IN_FLIGHT_BYTES {
            waves.push(&copies[from..index]);
            (from, bytes) = (index, 0);
        }
        bytes += size;
    }
    if from < copies.len() {
        waves.push(&copies[from..]);
    }
    waves
}

/// Prepares a copy for publishing: gives it a name of its own, and drops headers that do not fit into a frame.
fn prepare_copy(copy: &Copy, frame_max: u32) -> OutgoingMessage<'_> {
    let name = Uuid::now_v7().to_string();
    let mut headers = copy.properties.headers().clone().unwrap_or_default();
    // Included in the size of the headers.
    headers.insert(own_headers::COPY.into(), AMQPValue::LongString(name.as_str().into()));
    let headers = fit_headers(headers, frame_max);
    OutgoingMessage::new(
        own_headers::COPY,
        name,
        &copy.exchange,
        &copy.routing_key,
        copy.properties.clone(),
        headers,
        &copy.body,
    )
}

/// Converts the result of publishing a copy.
fn convert_result(copy: &Copy, result: PublishResult) -> Result<(), PublishError> {
    match result {
        PublishResult::Arrived => Ok(()),
        PublishResult::Unroutable => Err(PublishError::Unroutable(copy.exchange.clone())),
        // The last two results occur only with stored events.
        PublishResult::Nacked | PublishResult::Unreadable | PublishResult::TooLarge => {
            Err(PublishError::Nacked)
        }
        PublishResult::Unconfirmed => Err(PublishError::Unconfirmed),
        PublishResult::HeldBack(_) => Err(PublishError::HeldBack),
        PublishResult::Closed(code, text) => Err(PublishError::Closed(code, text)),
        PublishResult::HeadersTooLarge => Err(PublishError::HeadersTooLarge),
    }
}

/// Clones an error for each copy of a failed call.
fn clone_error(error: &PublishError) -> PublishError {
    match error {
        PublishError::Amqp(error) => PublishError::Amqp(clone_amqp(error)),
        PublishError::Blocked => PublishError::Blocked,
        _ => PublishError::Nacked,
    }
}

fn clone_amqp(error: &AmqpError) -> AmqpError {
    match error {
        AmqpError::Broker(error) => AmqpError::Broker(error.clone()),
        AmqpError::Timeout(what, limit) => AmqpError::Timeout(what, *limit),
        AmqpError::Url => AmqpError::Url,
        AmqpError::UrlFile(what) => AmqpError::UrlFile(what.clone()),
        AmqpError::Protection(what, fault) => AmqpError::Protection(what.clone(), *fault),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lapin::BasicProperties;

    use super::*;

    #[test]
    fn bodies_are_on_their_way_in_parts() {
        let copy = |size: usize| Copy {
            exchange: String::new(),
            routing_key: String::new(),
            properties: BasicProperties::default(),
            body: Bytes::from(vec![0; size]),
        };
        let split = |sizes: &[usize]| {
            let copies: Vec<Copy> = sizes.iter().map(|size| copy(*size)).collect();
            split_by_bytes(&copies).iter().map(|wave| wave.len()).collect::<Vec<_>>()
        };
        assert_eq!(split(&[]), Vec::<usize>::new());
        assert_eq!(split(&[1, 2, 3]), [3]);
        assert_eq!(split(&[MAX_IN_FLIGHT_BYTES, 1, MAX_IN_FLIGHT_BYTES - 1, 1]), [1, 2, 1]);
        assert_eq!(split(&[2 * MAX_IN_FLIGHT_BYTES, 2 * MAX_IN_FLIGHT_BYTES]), [1, 1]);
    }
}
