//! A consumer's subscription to one queue: one connection, one channel, one lifetime.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::AMQPValue;
use lapin::{Channel, Connection};

use super::budget::Budget;
use super::channel_life::ChannelLife;
use super::connection::{AmqpError, answer, connect_through};
use super::delivery::Delivery;
use super::valve::Valve;
use oncely_config::RabbitSettings;

async fn consume(channel: &Channel, queue: &str, limit: Duration) -> Result<lapin::Consumer, AmqpError> {
    let consumed = channel.basic_consume(
        queue.into(),
        "".into(),
        BasicConsumeOptions::default(),
        // The default priority. A stream, which loses unacknowledged messages, refuses priorities, so that subscribing to one fails.
        BTreeMap::from([("x-priority".into(), AMQPValue::LongInt(0))]).into(),
    );
    answer("basic.consume", limit, consumed).await
}

/// A subscription to one queue.
pub struct Subscription {
    connection: Connection,
    consumer: lapin::Consumer,
    /// Deliveries that had arrived before the subscription was renewed.
    left: VecDeque<Box<Delivery>>,
    channel: Channel,
    life: Arc<ChannelLife>,
    queue: String,
    timeout: Duration,
    valve: Valve,
    budget: Budget,
}

impl Subscription {
    /// Connects and subscribes, on its own connection that never publishes: under a memory alarm RabbitMQ stops reading from connections
    /// that have published, including their acknowledgements.
    pub async fn open(
        settings: &RabbitSettings,
        purpose: &str,
        queue: &str,
        prefetch: u16,
        budget: &Budget,
    ) -> Result<Self, AmqpError> {
        let limit = settings.timeout;
        let valve = Valve::default();
        let connection = connect_through(&valve, settings, purpose).await?;
        let channel = answer("channel.open", limit, connection.create_channel()).await?;
        answer("basic.qos", limit, channel.basic_qos(prefetch, BasicQosOptions::default())).await?;
        let consumer = consume(&channel, queue, limit).await?;
        Ok(Self {
            connection,
            consumer,
            left: VecDeque::new(),
            life: Arc::new(ChannelLife::new(channel.clone(), prefetch, limit)),
            channel,
            queue: queue.to_owned(),
            timeout: limit,
            valve,
            budget: budget.clone(),
        })
    }

    /// Returns the channel's lifetime.
    pub fn channel(&self) -> &Arc<ChannelLife> {
        &self.life
    }

    /// Returns the next delivery. `None` means that the subscription has ended for any reason: the connection was lost, the queue was
    /// deleted, the broker cancelled. Cancel safe: no delivery is lost.
    pub async fn next(&mut self) -> Option<Result<Box<Delivery>, AmqpError>> {
        if let Some(left) = self.left.pop_front() {
            return Some(Ok(left));
        }
        let next = tokio::select! {
            biased;
            next = self.consumer.next() => next,
            // Polled only when all read deliveries are taken.
            never = self.valve.keep_to(Some(&self.budget)) => match never {},
        };
        let delivery = match next? {
            Ok(delivery) => delivery,
            Err(error) => return Some(Err(error.into())),
        };
        Some(Ok(self.delivered(delivery)))
    }

    fn delivered(&self, delivery: lapin::message::Delivery) -> Box<Delivery> {
        self.life.delivered(delivery.delivery_tag);
        Delivery::new(delivery, &self.queue, Arc::clone(&self.life), &self.budget)
    }

    /// Renews the subscription on the same channel: a prefetch counts the deliveries of its consumer, so earlier deliveries that wait leave
    /// room for others. An error means that the subscription has ended.
    pub async fn renew(&mut self) -> Result<(), AmqpError> {
        let (tag, limit, channel) = (self.consumer.tag(), self.timeout, self.channel.clone());
        let mut left = Vec::new();
        {
            let cancelled = channel.basic_cancel(tag, BasicCancelOptions::default());
            let mut cancelled = std::pin::pin!(answer("basic.cancel", limit, cancelled));
            let mut is_cancelled = false;
            // The answer arrives after the deliveries in flight, and the end of the stream after the answer.
            loop {
                tokio::select! {
                    biased;
                    next = self.consumer.next() => match next {
                        Some(delivery) => left.push(delivery?),
                        None if is_cancelled => break,
                        None => {
                            cancelled.as_mut().await?;
                            break;
                        }
                    },
                    done = cancelled.as_mut(), if !is_cancelled => {
                        done?;
                        is_cancelled = true;
                    }
                    never = self.valve.keep_to(None) => match never {},
                }
            }
        }
        for delivery in left {
            let delivery = self.delivered(delivery);
            self.left.push_back(delivery);
        }
        self.consumer = tokio::select! {
            consumer = consume(&channel, &self.queue, limit) => consumer?,
            never = self.valve.keep_to(None) => match never {},
        };
        self.life.next_round();
        Ok(())
    }

    /// Waits for a future, and drops deliveries that arrive meanwhile: they come again when the subscription ends.
    pub async fn let_go<T>(&mut self, until: impl Future<Output = T>) -> T {
        let mut until = std::pin::pin!(until);
        loop {
            tokio::select! {
                biased;
                done = until.as_mut() => return done,
                next = self.consumer.next() => match next {
                    Some(Ok(delivery)) => self.life.delivered(delivery.delivery_tag),
                    Some(Err(_)) | None => return until.await,
                },
                never = self.valve.keep_to(None) => match never {},
            }
        }
    }

    /// Cancels further deliveries. Those already sent stay unacknowledged until settled or returned.
    pub async fn cancel(&mut self) -> Result<(), AmqpError> {
        let (tag, limit) = (self.consumer.tag(), self.timeout);
        let channel = self.channel.clone();
        let cancelled = channel.basic_cancel(tag, BasicCancelOptions::default());
        // The answer arrives after the deliveries in flight.
        self.let_go(answer("basic.cancel", limit, cancelled)).await
    }

    /// Ends the subscription: unsettled messages return to the queue.
    pub async fn close(self) {
        self.life.end();
        let closed = answer("connection.close", self.timeout, self.connection.close(200, "done".into()));
        let closed = tokio::select! {
            closed = closed => closed,
            never = self.valve.keep_to(None) => match never {},
        };
        if let Err(error) = closed {
            tracing::debug!(error = %error, "closing a connection to RabbitMQ failed");
        }
    }
}
