//! A consumer's subscription to one queue: one connection, one channel, one life.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::AMQPValue;
use lapin::{Channel, Connection};
use tokio_util::sync::CancellationToken;

use super::budget::{Budget, Valve};
use super::connection::{AmqpError, answer, connect_through};
use super::delivery::Delivery;
use crate::config::RabbitSettings;
use crate::settlement::{Ack, Settlement};

/// The life of one channel. Deliveries carry it, so that an acknowledgement can't reach another channel's delivery of the
/// same number.
#[derive(Debug)]
pub(crate) struct Epoch {
    channel: Channel,
    settlement: Mutex<Settlement>,
    /// Acknowledgements are computed and sent by one lane at a time: sent in another order, one of them would name a tag
    /// that an earlier one has covered, and the broker would close the channel.
    sending: tokio::sync::Mutex<()>,
    over: AtomicBool,
    ended: CancellationToken,
    timeout: Duration,
}

impl Epoch {
    /// Is the channel still there? Deliveries of an epoch that is over will come again.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || !self.channel.status().connected()
    }

    /// How many deliveries are not acknowledged.
    pub(crate) fn unacknowledged(&self) -> u64 {
        u64::try_from(self.lock().unacknowledged()).unwrap_or(u64::MAX)
    }

    /// Waits until the channel is of no use any more for a reason that its stream does not tell.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Marks deliveries as settled and acknowledges what can be. Call it only for what is known to be committed, or to be
    /// held by the broker in another queue. On a channel that is gone nothing is sent: redelivery decides.
    pub(crate) async fn settle(&self, tags: impl IntoIterator<Item = u64>) -> Result<(), AmqpError> {
        let _turn = self.sending.lock().await;
        let acks = self.lock().settle(tags);
        self.send(acks).await
    }

    /// Acknowledges what is settled and held back behind an unsettled delivery.
    pub(crate) async fn release(&self) -> Result<(), AmqpError> {
        let _turn = self.sending.lock().await;
        let acks = self.lock().release();
        self.send(acks).await
    }

    async fn send(&self, acks: Vec<Ack>) -> Result<(), AmqpError> {
        for ack in acks {
            if self.is_over() {
                return Ok(());
            }
            let (tag, multiple) = match ack {
                Ack::UpTo(tag) => (tag, true),
                Ack::One(tag) => (tag, false),
            };
            let sent = self.channel.basic_ack(tag, BasicAckOptions { multiple });
            if let Err(error) = answer("ack", self.timeout, sent).await {
                // The rest of this channel's acknowledgements would be lost as well: everything comes again, on another.
                self.over.store(true, Ordering::Release);
                self.ended.cancel();
                return Err(error);
            }
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Settlement> {
        // The settlement is only touched in whole steps, so a panic elsewhere leaves it sound.
        self.settlement.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A subscription to one queue.
pub(crate) struct Subscription {
    connection: Connection,
    consumer: lapin::Consumer,
    epoch: Arc<Epoch>,
    queue: String,
    timeout: Duration,
    valve: Valve,
    budget: Budget,
}

impl Subscription {
    /// Connects and subscribes, with a connection of its own that never publishes: under a memory alarm RabbitMQ stops
    /// reading from connections that have published, acknowledgements included.
    pub(crate) async fn open(
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
        let consumer = answer(
            "basic.consume",
            limit,
            channel.basic_consume(
                queue.into(),
                "".into(),
                BasicConsumeOptions::default(),
                // As by default; but a stream, which forgets what was not acknowledged, takes no priorities, and says so.
                BTreeMap::from([("x-priority".into(), AMQPValue::LongInt(0))]).into(),
            ),
        )
        .await?;
        Ok(Self {
            connection,
            consumer,
            epoch: Arc::new(Epoch {
                channel,
                settlement: Mutex::new(Settlement::new(prefetch)),
                sending: tokio::sync::Mutex::new(()),
                over: AtomicBool::new(false),
                ended: CancellationToken::new(),
                timeout: limit,
            }),
            queue: queue.to_owned(),
            timeout: limit,
            valve,
            budget: budget.clone(),
        })
    }

    /// The channel's life.
    pub(crate) fn epoch(&self) -> &Arc<Epoch> {
        &self.epoch
    }

    /// The next delivery. `None` means that the subscription is over, for whatever reason: the connection went, the queue
    /// was deleted, the broker cancelled. Can be dropped while waiting: no delivery is lost.
    pub(crate) async fn next(&mut self) -> Option<Result<Box<Delivery>, AmqpError>> {
        let next = tokio::select! {
            biased;
            next = self.consumer.next() => next,
            // All that has been read is taken.
            never = self.valve.keep_to(Some(&self.budget)) => match never {},
        };
        let delivery = match next? {
            Ok(delivery) => delivery,
            Err(error) => return Some(Err(error.into())),
        };
        self.epoch.lock().delivered(delivery.delivery_tag);
        Some(Ok(Delivery::new(delivery, &self.queue, Arc::clone(&self.epoch), &self.budget)))
    }

    /// Waits for something, and lets go whatever the broker still sends meanwhile: it comes again when the subscription ends.
    pub(crate) async fn let_go<T>(&mut self, until: impl Future<Output = T>) -> T {
        let mut until = std::pin::pin!(until);
        loop {
            tokio::select! {
                biased;
                done = until.as_mut() => return done,
                next = self.consumer.next() => match next {
                    Some(Ok(delivery)) => self.epoch.lock().delivered(delivery.delivery_tag),
                    Some(Err(_)) | None => return until.await,
                },
                never = self.valve.keep_to(None) => match never {},
            }
        }
    }

    /// Asks the broker for no more deliveries. Those already sent stay unacknowledged until settled or returned.
    pub(crate) async fn cancel(&mut self) -> Result<(), AmqpError> {
        let (channel, tag, limit) = (self.epoch.channel.clone(), self.consumer.tag(), self.timeout);
        let cancelled = channel.basic_cancel(tag, BasicCancelOptions::default());
        // The answer comes behind what is on its way.
        self.let_go(answer("basic.cancel", limit, cancelled)).await
    }

    /// Ends the subscription: what is not settled goes back to the queue.
    pub(crate) async fn close(self) {
        self.epoch.over.store(true, Ordering::Release);
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
