//! The life of one channel, and the acknowledgements that are sent on it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapin::Channel;
use lapin::options::BasicAckOptions;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::connection::{AmqpError, answer};
use crate::settlement::{Ack, Settlement};

/// The life of one channel. Deliveries carry it, so that an acknowledgement can't reach another channel's delivery of the
/// same number.
#[derive(Debug)]
pub(crate) struct ChannelLife {
    /// `None`: no broker has sent its deliveries, and none is told what became of them.
    channel: Option<Channel>,
    settlement: Mutex<Settlement>,
    /// Acknowledgements are computed and sent by one lane at a time: sent in another order, one of them would name a tag
    /// that an earlier one has covered, and the broker would close the channel.
    sending: tokio::sync::Mutex<()>,
    over: AtomicBool,
    ended: CancellationToken,
    timeout: Duration,
    credit: Mutex<Credit>,
    crowded: Notify,
    /// So many parked deliveries crowd out others.
    crowd: usize,
}

/// What of the prefetch is held by deliveries that wait.
#[derive(Debug, Default)]
struct Credit {
    /// How often the broker was asked anew: what came before that takes nothing from its prefetch any more.
    round: u32,
    /// Deliveries of this round that wait for their time, or for their copies.
    parked: usize,
}

/// A delivery that waits, as long as this lives.
#[derive(Debug)]
pub(crate) struct Parked {
    channel: Arc<ChannelLife>,
    round: u32,
}

impl Drop for Parked {
    fn drop(&mut self) {
        let mut credit = self.channel.credit();
        if credit.round == self.round {
            credit.parked = credit.parked.saturating_sub(1);
        }
    }
}

impl ChannelLife {
    pub(super) fn new(channel: Channel, prefetch: u16, timeout: Duration) -> Self {
        Self::of(Some(channel), prefetch, timeout)
    }

    /// Of deliveries that no broker has sent.
    pub(super) fn without_broker() -> Self {
        Self::of(None, 1, Duration::ZERO)
    }

    fn of(channel: Option<Channel>, prefetch: u16, timeout: Duration) -> Self {
        Self {
            channel,
            settlement: Mutex::new(Settlement::new(prefetch)),
            sending: tokio::sync::Mutex::new(()),
            over: AtomicBool::new(false),
            ended: CancellationToken::new(),
            timeout,
            credit: Mutex::default(),
            crowded: Notify::new(),
            crowd: usize::from(prefetch / 4).max(1),
        }
    }

    /// How often the broker was asked anew.
    pub(super) fn round(&self) -> u32 {
        self.credit().round
    }

    /// A delivery of this round waits.
    pub(super) fn park(self: &Arc<Self>, round: u32) -> Parked {
        let mut credit = self.credit();
        if credit.round == round {
            credit.parked += 1;
            if credit.parked >= self.crowd {
                self.crowded.notify_one();
            }
        }
        Parked { channel: Arc::clone(self), round }
    }

    /// Waits until a quarter of the prefetch is held by deliveries that wait.
    pub(crate) async fn crowded(&self) {
        loop {
            self.crowded.notified().await;
            if self.credit().parked >= self.crowd {
                return;
            }
        }
    }

    /// The broker was asked anew.
    pub(super) fn next_round(&self) {
        let mut credit = self.credit();
        *credit = Credit { round: credit.round.wrapping_add(1), parked: 0 };
    }

    fn credit(&self) -> std::sync::MutexGuard<'_, Credit> {
        // Numbers, of which each is whole.
        self.credit.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A delivery has come.
    pub(super) fn delivered(&self, tag: u64) {
        self.lock().delivered(tag);
    }

    /// The channel is not used any more.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Is the channel still there? Deliveries of a channel that is over will come again.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
            || self.channel.as_ref().is_some_and(|channel| !channel.status().connected())
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

    /// The same where the broker delivers nothing before it gets one, and the oldest delivery is at work since the last look.
    pub(crate) async fn release_where_stuck(&self) -> Result<(), AmqpError> {
        let _turn = self.sending.lock().await;
        let acks = self.lock().release_where_stuck();
        self.send(acks).await
    }

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
            let sent = channel.basic_ack(tag, BasicAckOptions { multiple });
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
