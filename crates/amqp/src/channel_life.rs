//! Lifetime of one channel, and its acknowledgements.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapin::Channel;
use lapin::options::BasicAckOptions;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::connection::{AmqpError, wait_for_answer};
use oncely_core::settlement::{Ack, Settlement};

/// Lifetime of one channel. Deliveries carry it, so that an acknowledgement can't settle another channel's delivery with the same tag.
#[derive(Debug)]
pub struct ChannelLife {
    /// `None` in trials without a broker: no acknowledgement is sent.
    channel: Option<Channel>,
    settlement: Mutex<Settlement>,
    /// Acknowledgements are computed and sent by one lane at a time: sent in another order, one of them would name a tag
    /// that an earlier one has covered, and the broker would close the channel.
    send_lock: tokio::sync::Mutex<()>,
    is_over: AtomicBool,
    ended: CancellationToken,
    timeout: Duration,
    parked_prefetch: Mutex<ParkedPrefetch>,
    crowded: Notify,
    /// Number of parked deliveries that block others.
    crowd_size: usize,
}

/// Part of the prefetch that parked deliveries hold.
#[derive(Debug, Default)]
struct ParkedPrefetch {
    /// Number of renewals of the subscription: deliveries of earlier rounds don't count against its prefetch.
    round: u32,
    /// Parked deliveries of this round: they wait for their time, or for their copies.
    parked: usize,
}

/// A parked delivery, until it is dropped.
#[derive(Debug)]
pub(crate) struct ParkedDelivery {
    channel: Arc<ChannelLife>,
    round: u32,
}

impl Drop for ParkedDelivery {
    fn drop(&mut self) {
        let mut parked_prefetch = self.channel.lock_parked();
        if parked_prefetch.round == self.round {
            parked_prefetch.parked = parked_prefetch.parked.saturating_sub(1);
        }
    }
}

impl ChannelLife {
    pub(super) fn new(channel: Channel, prefetch: u16, timeout: Duration) -> Self {
        Self::from_channel(Some(channel), prefetch, timeout)
    }

    /// Creates a channel life for deliveries without a broker.
    pub(super) fn without_broker() -> Self {
        Self::from_channel(None, 1, Duration::ZERO)
    }

    fn from_channel(channel: Option<Channel>, prefetch: u16, timeout: Duration) -> Self {
        Self {
            channel,
            settlement: Mutex::new(Settlement::new(prefetch)),
            send_lock: tokio::sync::Mutex::new(()),
            is_over: AtomicBool::new(false),
            ended: CancellationToken::new(),
            timeout,
            parked_prefetch: Mutex::default(),
            crowded: Notify::new(),
            crowd_size: usize::from(prefetch / 4).max(1),
        }
    }

    /// Returns the number of renewals of the subscription.
    pub(super) fn round(&self) -> u32 {
        self.lock_parked().round
    }

    /// Parks a delivery of this round, and wakes [`ChannelLife::wait_until_crowded`] when a quarter of the prefetch is parked.
    pub(super) fn park(self: &Arc<Self>, round: u32) -> ParkedDelivery {
        let mut parked_prefetch = self.lock_parked();
        if parked_prefetch.round == round {
            parked_prefetch.parked += 1;
            if parked_prefetch.parked >= self.crowd_size {
                self.crowded.notify_one();
            }
        }
        ParkedDelivery { channel: Arc::clone(self), round }
    }

    /// Waits until parked deliveries hold a quarter of the prefetch.
    pub async fn wait_until_crowded(&self) {
        loop {
            self.crowded.notified().await;
            if self.lock_parked().parked >= self.crowd_size {
                return;
            }
        }
    }

    /// Begins the next round after a renewal of the subscription: no delivery of it is parked yet.
    pub(super) fn begin_round(&self) {
        let mut parked_prefetch = self.lock_parked();
        *parked_prefetch = ParkedPrefetch { round: parked_prefetch.round.wrapping_add(1), parked: 0 };
    }

    fn lock_parked(&self) -> std::sync::MutexGuard<'_, ParkedPrefetch> {
        // Every change leaves the numbers consistent.
        self.parked_prefetch.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Registers a delivery.
    pub(super) fn register_delivery(&self, tag: u64) {
        self.lock().add_delivery(tag);
    }

    /// Marks the channel as ended: nothing more is sent on it.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Returns whether the channel has ended. Its deliveries are then redelivered.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
            || self.channel.as_ref().is_some_and(|channel| !channel.status().connected())
    }

    /// Returns the number of unacknowledged deliveries.
    pub fn unacknowledged(&self) -> u64 {
        u64::try_from(self.lock().unacknowledged()).unwrap_or(u64::MAX)
    }

    /// Waits until the channel has become unusable for a reason that its stream does not report.
    pub async fn wait_until_ended(&self) {
        self.ended.cancelled().await;
    }

    /// Marks deliveries as settled, and acknowledges those that can be, one caller at a time. To be called only for messages that are known
    /// to be committed, or to be held by the broker in another queue. On a channel that has ended nothing is sent: redelivery decides.
    pub async fn settle(&self, tags: impl IntoIterator<Item = u64>) -> Result<(), AmqpError> {
        self.lock().mark(tags);
        // Runs of one commit end at the same time: one acknowledgement covers all of them.
        tokio::task::yield_now().await;
        let _guard = self.send_lock.lock().await;
        let acks = self.lock().take_acks();
        self.send(acks).await
    }

    /// Acknowledges settled deliveries that are held back behind an unsettled one.
    pub async fn release(&self) -> Result<(), AmqpError> {
        let _guard = self.send_lock.lock().await;
        let acks = self.lock().release();
        self.send(acks).await
    }

    /// Acknowledges settled deliveries that are held back, if the broker delivers nothing before it gets an acknowledgement, and the oldest
    /// delivery has been at work since the last call.
    pub async fn release_where_stuck(&self) -> Result<(), AmqpError> {
        let _guard = self.send_lock.lock().await;
        let acks = self.lock().release_where_stuck();
        self.send(acks).await
    }

    /// Sends acknowledgements. After an error the channel is over: later acknowledgements would be lost, too.
    async fn send(&self, acks: Vec<Ack>) -> Result<(), AmqpError> {
        let Some(channel) = &self.channel else { return Ok(()) };
        for ack in acks {
            if self.is_over() {
                return Ok(());
            }
            let (tag, multiple) = match ack {
                Ack::UpTo(tag) => (tag, true),
                Ack::One(tag) => (tag, false),
            };
            let request = channel.basic_ack(tag, BasicAckOptions { multiple });
            if let Err(error) = wait_for_answer("ack", self.timeout, request).await {
                // The channel's later acknowledgements would be lost as well: all of its deliveries come again, on another channel.
                self.is_over.store(true, Ordering::Release);
                self.ended.cancel();
                return Err(error);
            }
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Settlement> {
        // Every change leaves the settlement consistent, so a panic elsewhere does no harm.
        self.settlement.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
