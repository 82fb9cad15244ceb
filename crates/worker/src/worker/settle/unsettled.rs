//! Deliveries of the lanes that can be acknowledged only when a copy of theirs has arrived: bounded in number and bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::worker::candidate::{DecidedDelivery, PartialIdentity, SettledDelivery};
use crate::worker::interrupt::AbandonedBatch;
use oncely_amqp::{Copy, Delivery};
use oncely_config::ConsumerSettings;
use oncely_core::identity::IdentityPart;

/// Maximum wait of a lane for the first try while no copy fails: a delivery settled before the lane's next batch can't come again.
const FIRST_TRY: Duration = Duration::from_secs(1);

/// Interval at which unsettled deliveries are logged, with the reason.
pub(super) const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum number of messages of a consumer under leases that wait aside, and of those with unpublished copies: such a message uses no
/// permit to run, no session and none of the prefetch.
pub(crate) const MAX_LEASED_WAITING: usize = 500;

/// Unit in which bytes are counted: a semaphore holds fewer permits than there may be bytes.
const PERMIT_BYTES: usize = 1 << 10;

/// Deliveries that the lanes of a consumer can't settle at once.
pub(crate) struct UnsettledDeliveries {
    sender: mpsc::UnboundedSender<PendingCopy>,
    receiver: Mutex<Option<mpsc::UnboundedReceiver<PendingCopy>>>,
    message_permits: Arc<Semaphore>,
    byte_permits: Arc<Semaphore>,
    /// Number of permits of `byte_permits` in all.
    units: usize,
    /// Number of those that have failed at least once.
    waiting: AtomicUsize,
    logged_at: std::sync::Mutex<Option<Instant>>,
    closed: CancellationToken,
}

/// A delivery and its copy.
pub(super) struct PendingCopy {
    pub(super) settled: SettledDelivery,
    pub(super) copy: Copy,
    /// Held until its first try is over.
    pub(super) first_try: Option<Arc<DropGuard>>,
    _room: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

impl UnsettledDeliveries {
    /// Makes room for this number of deliveries, and a quarter of the bytes that may be held: the other bytes are for deliveries that go
    /// on.
    pub(crate) fn new(consumer: &ConsumerSettings, message_permits: usize) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let units = (usize::try_from(consumer.buffer).unwrap_or(usize::MAX) / 4 / PERMIT_BYTES).max(1);
        Self {
            sender,
            receiver: Mutex::new(Some(receiver)),
            message_permits: Arc::new(Semaphore::new(message_permits)),
            byte_permits: Arc::new(Semaphore::new(units)),
            units,
            waiting: AtomicUsize::new(0),
            logged_at: std::sync::Mutex::new(None),
            closed: CancellationToken::new(),
        }
    }

    /// Returns the number of deliveries with copies that have failed at least once and are tried again.
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Takes the receiver of deliveries handed over, for the one task that settles them; `None` if it was taken.
    pub(super) async fn take(&self) -> Option<mpsc::UnboundedReceiver<PendingCopy>> {
        self.receiver.lock().await.take()
    }

    /// Drops the receiver of deliveries handed over: there is no broker.
    #[cfg(feature = "testing")]
    pub(crate) async fn drop_handed_over(&self) {
        drop(self.take().await);
    }

    /// Sets the number of deliveries with copies that have failed at least once.
    pub(super) fn set_waiting(&self, waiting: usize) {
        self.waiting.store(waiting, Ordering::Release);
    }

    /// Waits until [`UnsettledDeliveries::close`] is called.
    pub(super) async fn wait_until_closed(&self) {
        self.closed.cancelled().await;
    }

    /// Ends the handing over: the deliveries handed over are tried once, and the rest is left to redelivery.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    /// Hands deliveries over with their copies. Waits for room if too many are unsettled; and, while no copy fails, for the first try, a
    /// second at most.
    pub(super) async fn hand_over(
        &self,
        consumer: &IdentityPart,
        stop: &CancellationToken,
        leaving: Vec<(SettledDelivery, Copy)>,
    ) -> Result<(), AbandonedBatch> {
        if leaving.is_empty() {
            return Ok(());
        }
        let first_try_over = CancellationToken::new();
        let guard = Arc::new(first_try_over.clone().drop_guard());
        for (settled, copy) in leaving {
            let DecidedDelivery { delivery, identity, .. } = &settled.decided;
            let Some(room) = self.wait_for_room(consumer, stop, delivery, identity).await? else { continue };
            let first_try = Some(Arc::clone(&guard));
            // Its receiver ends after the lanes.
            let _ = self.sender.send(PendingCopy { settled, copy, first_try, _room: room });
        }
        drop(guard);
        if self.waiting.load(Ordering::Acquire) == 0 {
            let _ = tokio::time::timeout(FIRST_TRY, first_try_over.cancelled()).await;
        }
        Ok(())
    }

    /// Waits for room for a delivery. Returns `None` if its channel is over, so that it comes again; fails if the worker stops.
    async fn wait_for_room(
        &self,
        consumer: &IdentityPart,
        stop: &CancellationToken,
        delivery: &Delivery,
        identity: &PartialIdentity,
    ) -> Result<Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>, AbandonedBatch> {
        let units = (delivery.size() / PERMIT_BYTES + 1).min(self.units);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        loop {
            let room = async {
                let message_permit = Arc::clone(&self.message_permits).acquire_owned().await;
                (message_permit, Arc::clone(&self.byte_permits).acquire_many_owned(units).await)
            };
            tokio::select! {
                biased;
                room = room => match room {
                    (Ok(message_permit), Ok(byte_permits)) => return Ok(Some((message_permit, byte_permits))),
                    // Never: they are not closed.
                    _ => return Err(AbandonedBatch),
                },
                () = stop.cancelled() => return Err(AbandonedBatch),
                () = tokio::time::sleep(FIRST_TRY) => {}
            }
            if delivery.channel.is_over() {
                return Ok(None);
            }
            let mut logged_at = self.logged_at.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
                *logged_at = Some(Instant::now());
                tracing::error!(
                    %consumer,
                    queue = delivery.message.queue,
                    tenant = identity.tenant.as_ref().map(tracing::field::display),
                    key = identity.key.as_ref().map(tracing::field::display),
                    "consumer waits: the limit of unsettled messages is reached, as copies cannot be published"
                );
            }
        }
    }
}
