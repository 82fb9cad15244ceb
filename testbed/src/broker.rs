//! A plain AMQP client for tests: publish with confirms, look at queues, take what is in them.

use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use lapin::message::{BasicGetMessage, Delivery};
use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};

/// One connection with one channel in confirm mode.
#[derive(Debug)]
pub struct Broker {
    connection: Connection,
    channel: Channel,
    /// Of [`Broker::ready`]: a missing queue closes it.
    looking: tokio::sync::Mutex<Option<Channel>>,
}

impl Broker {
    /// Connects to `url`.
    pub async fn connect(url: &str) -> anyhow::Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default())
            .await
            .context("cannot connect to RabbitMQ")?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { connection, channel, looking: tokio::sync::Mutex::default() })
    }

    /// The channel, for what has no method here.
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Publishes and waits for the confirm. Fails when the message was refused or found no queue.
    pub async fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        properties: BasicProperties,
        body: &[u8],
    ) -> anyhow::Result<()> {
        self.publish_all(exchange, vec![(routing_key.to_owned(), properties, body.to_vec())]).await
    }

    /// Publishes many messages, then waits for all confirms.
    pub async fn publish_all(
        &self,
        exchange: &str,
        messages: Vec<(String, BasicProperties, Vec<u8>)>,
    ) -> anyhow::Result<()> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let mut confirms = Vec::with_capacity(messages.len());
        for (routing_key, properties, body) in messages {
            let properties = properties.with_delivery_mode(2);
            confirms.push(
                self.channel
                    .basic_publish(exchange.into(), routing_key.as_str().into(), options, &body, properties)
                    .await?,
            );
        }
        for confirm in confirms {
            let confirmation = tokio::time::timeout(Duration::from_secs(30), confirm).await??;
            anyhow::ensure!(confirmation.is_ack(), "the broker refused a message");
            anyhow::ensure!(confirmation.take_message().is_none(), "a message found no queue");
        }
        Ok(())
    }

    /// Declares a durable queue with the given arguments.
    pub async fn declare_queue(&self, name: &str, arguments: FieldTable) -> anyhow::Result<()> {
        self.channel.queue_declare(name.into(), QueueDeclareOptions::durable(), arguments).await?;
        Ok(())
    }

    /// Declares a durable exchange.
    pub async fn declare_exchange(&self, name: &str, kind: ExchangeKind) -> anyhow::Result<()> {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        self.channel.exchange_declare(name.into(), kind, options, FieldTable::default()).await?;
        Ok(())
    }

    /// Binds a queue to an exchange.
    pub async fn bind(&self, queue: &str, exchange: &str, routing_key: &str) -> anyhow::Result<()> {
        self.channel
            .queue_bind(
                queue.into(),
                exchange.into(),
                routing_key.into(),
                QueueBindOptions::default(),
                FieldTable::default(),
            )
            .await?;
        Ok(())
    }

    /// Removes a binding.
    pub async fn unbind(&self, queue: &str, exchange: &str, routing_key: &str) -> anyhow::Result<()> {
        let (queue, exchange, key) = (queue.into(), exchange.into(), routing_key.into());
        self.channel.queue_unbind(queue, exchange, key, FieldTable::default()).await?;
        Ok(())
    }

    /// Messages ready in a queue. What is delivered and not yet acknowledged is not counted.
    pub async fn ready(&self, queue: &str) -> anyhow::Result<u32> {
        let mut looking = self.looking.lock().await;
        let channel = match looking.take() {
            Some(channel) => channel,
            None => self.connection.create_channel().await?,
        };
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
        *looking = Some(channel);
        Ok(queue.message_count())
    }

    /// Messages ready in a queue that is there, and its consumers; on the one channel, so that it can be asked often.
    pub async fn depth(&self, queue: &str) -> anyhow::Result<(u32, u32)> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = self.channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
        Ok((queue.message_count(), queue.consumer_count()))
    }

    /// Takes (and acknowledges) one message, if there is one.
    pub async fn take(&self, queue: &str) -> anyhow::Result<Option<Delivery>> {
        let message = self.channel.basic_get(queue.into(), BasicGetOptions::default()).await?;
        match message {
            None => Ok(None),
            Some(BasicGetMessage { delivery, .. }) => {
                delivery.ack(BasicAckOptions::default()).await?;
                Ok(Some(delivery))
            }
        }
    }

    /// Takes exactly `count` messages, waiting for them; fails when they do not come.
    pub async fn take_exactly(&self, queue: &str, count: usize) -> anyhow::Result<Vec<Delivery>> {
        let mut consumer = self
            .channel
            .basic_consume(
                queue.into(),
                "".into(),
                lapin::options::BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await?;
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let delivery = tokio::time::timeout(Duration::from_secs(30), consumer.next())
                .await
                .with_context(|| format!("{} of {count} messages came to {queue}", taken.len()))?
                .context("the consumer was cancelled")??;
            delivery.ack(BasicAckOptions::default()).await?;
            taken.push(delivery);
        }
        self.channel.basic_cancel(consumer.tag(), lapin::options::BasicCancelOptions::default()).await?;
        Ok(taken)
    }

    /// Takes up to `count` messages without acknowledging them and goes away, so that they are redelivered.
    pub async fn bounce(url: &str, queue: &str, count: usize) -> anyhow::Result<()> {
        let broker = Self::connect(url).await?;
        for number in 0..count {
            let got = broker.channel.basic_get(queue.into(), BasicGetOptions::default()).await?;
            anyhow::ensure!(got.is_some(), "{queue} had only {number} messages");
        }
        broker.connection.close(200, "done".into()).await?;
        Ok(())
    }

    /// Removes all messages of a queue.
    pub async fn purge(&self, queue: &str) -> anyhow::Result<()> {
        self.channel.queue_purge(queue.into(), QueuePurgeOptions::default()).await?;
        Ok(())
    }

    /// Deletes an exchange.
    pub async fn delete_exchange(&self, exchange: &str) -> anyhow::Result<()> {
        self.channel.exchange_delete(exchange.into(), ExchangeDeleteOptions::default()).await?;
        Ok(())
    }

    /// Deletes a queue in which nothing is; fails where something is.
    pub async fn delete_queue_if_empty(&self, queue: &str) -> anyhow::Result<()> {
        let options = QueueDeleteOptions { if_empty: true, ..QueueDeleteOptions::default() };
        self.channel.queue_delete(queue.into(), options).await?;
        Ok(())
    }

    /// Deletes a queue.
    pub async fn delete_queue(&self, queue: &str) -> anyhow::Result<()> {
        self.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
        Ok(())
    }

    /// Deletes a consumer's queue and all that Oncely declares for it where its retries have these delays.
    pub async fn delete_topology(&self, queue: &str, delays: &[&str]) -> anyhow::Result<()> {
        let retries = delays.iter().map(|delay| format!("{queue}.retry.{delay}"));
        for name in [queue.to_owned(), format!("{queue}.dead")].into_iter().chain(retries) {
            self.delete_queue(&name).await?;
        }
        for suffix in [".dlx", ".retry", ".return"] {
            self.delete_exchange(&format!("{queue}{suffix}")).await?;
        }
        Ok(())
    }
}
