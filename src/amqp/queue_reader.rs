//! Takes messages from a queue one by one, each to be settled before the reader goes.

use std::time::Duration;

use bytes::Bytes;
use lapin::message::BasicGetMessage;
use lapin::options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection};

use super::connection::{AmqpError, answer, connect};
use crate::config::RabbitSettings;

/// A message that is held until it is acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct QueuedMessage {
    pub(crate) tag: u64,
    pub(crate) routing_key: String,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Bytes,
}

/// Takes messages. By `basic.get`, not by a subscription: a subscription is sent more than it deals with, and what goes
/// back to a quorum queue has one delivery less to live. On a connection that never publishes.
pub(crate) struct QueueReader {
    connection: Connection,
    channel: Channel,
    queue: String,
    limit: Duration,
}

impl QueueReader {
    /// Opens a connection; also says how many messages are ready.
    pub(crate) async fn open(
        settings: &RabbitSettings,
        purpose: &str,
        queue: &str,
    ) -> Result<(Self, u32), AmqpError> {
        let limit = settings.timeout;
        let connection = connect(settings, purpose).await?;
        let channel = answer("channel.open", limit, connection.create_channel()).await?;
        let reader = Self { connection, channel, queue: queue.to_owned(), limit };
        let ready = reader.ready().await?;
        Ok((reader, ready))
    }

    /// How many messages are ready. The answer comes behind all that was acknowledged before.
    pub(crate) async fn ready(&self) -> Result<u32, AmqpError> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = self.channel.queue_declare(self.queue.as_str().into(), options, FieldTable::default());
        Ok(answer("queue.declare", self.limit, declared).await?.message_count())
    }

    /// The next message, or `None` where none is ready.
    pub(crate) async fn take(&self) -> Result<Option<QueuedMessage>, AmqpError> {
        let asked = self.channel.basic_get(self.queue.as_str().into(), BasicGetOptions::default());
        Ok(answer("basic.get", self.limit, asked).await?.map(|BasicGetMessage { delivery, .. }| {
            QueuedMessage {
                tag: delivery.delivery_tag,
                routing_key: delivery.routing_key.to_string(),
                properties: delivery.properties,
                body: delivery.data.into(),
            }
        }))
    }

    /// Acknowledges a message whose copy is known to have arrived, or that nobody needs.
    pub(crate) async fn acknowledge(&self, tag: u64) -> Result<(), AmqpError> {
        answer("ack", self.limit, self.channel.basic_ack(tag, BasicAckOptions::default())).await
    }

    /// Says good-bye; what is not acknowledged goes back to the queue. Closing waits for the acknowledgements before it.
    pub(crate) async fn close(self) {
        if let Err(error) =
            answer("connection.close", self.limit, self.connection.close(200, "done".into())).await
        {
            tracing::debug!(error = %error, "closing a connection to RabbitMQ failed");
        }
    }
}
