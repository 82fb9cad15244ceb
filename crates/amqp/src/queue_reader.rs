//! Takes messages from a queue one by one, each settled before the next.

use std::time::Duration;

use bytes::Bytes;
use lapin::message::BasicGetMessage;
use lapin::options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection};

use super::connection::{AmqpError, connect, wait_for_answer};
use oncely_config::RabbitSettings;

/// A message that is held until it is acknowledged.
#[derive(Clone, Debug)]
pub struct QueuedMessage {
    pub tag: u64,
    pub routing_key: String,
    pub properties: BasicProperties,
    pub body: Bytes,
}

/// Takes messages by `basic.get`, not by a subscription: a subscription receives more messages than it processes, and each one that returns
/// to a quorum queue has used up a delivery. Its connection never publishes.
pub struct QueueReader {
    connection: Connection,
    channel: Channel,
    queue: String,
    limit: Duration,
}

impl QueueReader {
    /// Opens a connection for one queue; also returns the number of ready messages.
    pub async fn open(
        settings: &RabbitSettings,
        purpose: &str,
        queue: &str,
    ) -> Result<(Self, u32), AmqpError> {
        let limit = settings.timeout;
        let connection = connect(settings, purpose).await?;
        let channel = wait_for_answer("channel.open", limit, connection.create_channel()).await?;
        let reader = Self { connection, channel, queue: queue.to_owned(), limit };
        let ready = reader.count_ready().await?;
        Ok((reader, ready))
    }

    /// Queries the number of ready messages. The reply arrives after all earlier acknowledgements were processed.
    pub async fn count_ready(&self) -> Result<u32, AmqpError> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let request = self.channel.queue_declare(self.queue.as_str().into(), options, FieldTable::default());
        Ok(wait_for_answer("queue.declare", self.limit, request).await?.message_count())
    }

    /// Takes the next message, which is held until it is acknowledged; `None` if no message is ready.
    pub async fn take(&self) -> Result<Option<QueuedMessage>, AmqpError> {
        let request = self.channel.basic_get(self.queue.as_str().into(), BasicGetOptions::default());
        Ok(wait_for_answer("basic.get", self.limit, request).await?.map(
            |BasicGetMessage { delivery, .. }| QueuedMessage {
                tag: delivery.delivery_tag,
                routing_key: delivery.routing_key.to_string(),
                properties: delivery.properties,
                body: delivery.data.into(),
            },
        ))
    }

    /// Acknowledges a message that has a copy known to have arrived, or is not needed.
    pub async fn acknowledge(&self, tag: u64) -> Result<(), AmqpError> {
        wait_for_answer("ack", self.limit, self.channel.basic_ack(tag, BasicAckOptions::default())).await
    }

    /// Closes the connection gracefully; unacknowledged messages return to the queue. Waits up to `rabbitmq.timeout` for the answer, which
    /// comes after the earlier acknowledgements.
    pub async fn close(self) {
        if let Err(error) =
            wait_for_answer("connection.close", self.limit, self.connection.close(200, "done".into())).await
        {
            tracing::debug!(error = %error, "closing a connection to RabbitMQ failed");
        }
    }
}
