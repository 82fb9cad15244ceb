//! A consumer's subscription to one queue: one connection, one channel, one lifetime.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{FutureExt as _, StreamExt as _};
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::AMQPValue;
use lapin::{Channel, Connection};
use tokio::task::JoinHandle;

use super::budget::Budget;
use super::channel_life::ChannelLife;
use super::connection::{AmqpError, connect_through, wait_for_answer};
use super::delivery::Delivery;
use super::frames::FrameLimits;
use super::valve::Valve;
use oncely_config::RabbitSettings;

/// Subscribes to a queue on a channel.
async fn consume(channel: &Channel, queue: &str, limit: Duration) -> Result<lapin::Consumer, AmqpError> {
    let request = channel.basic_consume(
        queue.into(),
        "".into(),
        BasicConsumeOptions::default(),
        // The default priority. A stream, which loses unacknowledged messages, refuses priorities, so that subscribing to one fails.
        BTreeMap::from([("x-priority".into(), AMQPValue::LongInt(0))]).into(),
    );
    wait_for_answer("basic.consume", limit, request).await
}

/// A subscription to one queue.
pub struct Subscription {
    connection: Connection,
    consumer: lapin::Consumer,
    /// The cancellation before a renewal, which is answered behind all deliveries in flight.
    renewal: Option<JoinHandle<Result<(), lapin::Error>>>,
    /// Time of the last delivery during a renewal, or of its start.
    renewing_since: Instant,
    channel: Channel,
    life: Arc<ChannelLife>,
    queue: String,
    timeout: Duration,
    valve: Valve,
    budget: Budget,
}

impl Subscription {
    /// Connects and subscribes, on its own connection that never publishes: under a memory alarm RabbitMQ stops reading from connections
    /// that have published, including their acknowledgements. A body of more than `max_body` bytes is not read
    /// ([`Delivery::unread_body`]).
    pub async fn open(
        settings: &RabbitSettings,
        purpose: &str,
        queue: &str,
        prefetch: u16,
        max_body: u64,
        budget: &Budget,
    ) -> Result<Self, AmqpError> {
        let limit = settings.timeout;
        let valve = Valve::default();
        let connection =
            connect_through(&valve, settings, purpose, FrameLimits::for_subscription(max_body)).await?;
        let channel = wait_for_answer("channel.open", limit, connection.create_channel()).await?;
        wait_for_answer("basic.qos", limit, channel.basic_qos(prefetch, BasicQosOptions::default())).await?;
        let consumer = consume(&channel, queue, limit).await?;
        Ok(Self {
            connection,
            consumer,
            renewal: None,
            renewing_since: Instant::now(),
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

    /// Waits for the next delivery; reads only while the budget has room. `None` means that the subscription has ended: for a renewal
    /// ([`Subscription::resubscribe`]), or for any other reason: the connection was lost, the queue was deleted, the broker cancelled.
    /// Cancel safe: no delivery is lost.
    pub async fn next(&mut self) -> Option<Result<Box<Delivery>, AmqpError>> {
        let next = tokio::select! {
            biased;
            next = self.consumer.next() => next,
            // Polled only when all read deliveries are taken.
            never = self.valve.keep_reopening(Some(&self.budget)) => match never {},
        };
        let delivery = match next? {
            Ok(delivery) => delivery,
            Err(error) => return Some(Err(error.into())),
        };
        if self.is_renewing() {
            self.renewing_since = Instant::now();
        }
        self.life.register_delivery(delivery.delivery_tag);
        Some(Ok(Delivery::new(delivery, &self.queue, Arc::clone(&self.life), &self.budget)))
    }

    /// Begins to renew the subscription on the same channel: a prefetch counts the deliveries of its consumer, so earlier deliveries that
    /// wait leave room for others. Those in flight come before the end, as the budget permits.
    pub fn begin_renewal(&mut self) {
        if self.renewal.is_none() {
            let (channel, tag) = (self.channel.clone(), self.consumer.tag());
            let cancellation = async move { channel.basic_cancel(tag, BasicCancelOptions::default()).await };
            self.renewal = Some(tokio::spawn(cancellation));
            self.renewing_since = Instant::now();
        }
    }

    /// Returns whether a renewal has begun, and its end has not come.
    pub fn is_renewing(&self) -> bool {
        self.renewal.is_some()
    }

    /// Returns whether a renewal does not end although its deliveries may come.
    pub fn is_stuck(&self) -> bool {
        self.is_renewing() && self.budget.has_room() && self.renewing_since.elapsed() > self.timeout
    }

    /// Subscribes again at the end of the deliveries before a renewal. Returns false if no renewal has begun.
    pub async fn resubscribe(&mut self) -> Result<bool, AmqpError> {
        let Some(cancellation) = self.renewal.take() else { return Ok(false) };
        let (channel, queue, limit) = (self.channel.clone(), self.queue.clone(), self.timeout);
        let renewal = async {
            wait_for_answer("basic.cancel", limit, cancellation.map(|done| done.unwrap_or(Ok(())))).await?;
            consume(&channel, &queue, limit).await
        };
        self.consumer = tokio::select! {
            consumer = renewal => consumer?,
            never = self.valve.keep_reopening(None) => match never {},
        };
        self.life.begin_round();
        Ok(true)
    }

    /// Waits until a future completes, and drops deliveries that arrive meanwhile: they come again when the subscription ends.
    pub async fn drop_deliveries_until<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        loop {
            tokio::select! {
                biased;
                done = future.as_mut() => return done,
                next = self.consumer.next() => match next {
                    Some(Ok(delivery)) => self.life.register_delivery(delivery.delivery_tag),
                    Some(Err(_)) | None => break,
                },
                never = self.valve.keep_reopening(None) => match never {},
            }
        }
        // The answers of the broker, and its heartbeats.
        tokio::select! {
            done = future => done,
            never = self.valve.keep_reopening(None) => match never {},
        }
    }

    /// Cancels further deliveries. Those already sent stay unacknowledged until settled or returned.
    pub async fn cancel(&mut self) -> Result<(), AmqpError> {
        let (tag, limit) = (self.consumer.tag(), self.timeout);
        let channel = self.channel.clone();
        let cancellation = match self.renewal.take() {
            Some(cancellation) => cancellation.map(|done| done.unwrap_or(Ok(()))).left_future(),
            None => channel.basic_cancel(tag, BasicCancelOptions::default()).right_future(),
        };
        // The answer arrives after the deliveries in flight.
        self.drop_deliveries_until(wait_for_answer("basic.cancel", limit, cancellation)).await
    }

    /// Ends the subscription: unsettled messages return to the queue. Waits up to `rabbitmq.timeout` for the broker's answer.
    pub async fn close(self) {
        self.life.end();
        let result =
            wait_for_answer("connection.close", self.timeout, self.connection.close(200, "done".into()));
        let result = tokio::select! {
            result = result => result,
            never = self.valve.keep_reopening(None) => match never {},
        };
        if let Err(error) = result {
            tracing::debug!(error = %error, "closing a connection to RabbitMQ failed");
        }
    }
}
