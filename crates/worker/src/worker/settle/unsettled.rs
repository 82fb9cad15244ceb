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

/// Longest wait of a lane for the first try while no copy fails: a delivery settled before the lane's next batch can't come again.
const FIRST_TRY: Duration = Duration::from_secs(1);

/// Interval at which unsettled deliveries are logged, with the reason.
pub(super) const LOG_AGAIN: Duration = Duration::from_secs(60);

/// Most messages of a consumer under leases that wait aside, and most with unpublished copies: such a message uses no place, no session and
/// none of the prefetch.
pub(crate) const LEASED_ROOM: usize = 500;

/// Unit in which bytes are counted: a semaphore holds fewer permits than there may be bytes.
const UNIT: usize = 1 << 10;

/// Deliveries that the lanes of a consumer can't settle at once.
pub(crate) struct UnsettledDeliveries {
    handed: mpsc::UnboundedSender<PendingCopy>,
    taken: Mutex<Option<mpsc::UnboundedReceiver<PendingCopy>>>,
    places: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    /// Units of `bytes` in all.
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
    /// Makes room for this number of deliveries, and a quarter of the bytes that may be held: the rest is for deliveries that go on.
    pub(crate) fn new(consumer: &ConsumerSettings, places: usize) -> Self {
        let (handed, taken) = mpsc::unbounded_channel();
        let units = (usize::try_from(consumer.buffer).unwrap_or(usize::MAX) / 4 / UNIT).max(1);
        Self {
            handed,
            taken: Mutex::new(Some(taken)),
            places: Arc::new(Semaphore::new(places)),
            bytes: Arc::new(Semaphore::new(units)),
            units,
            waiting: AtomicUsize::new(0),
            logged_at: std::sync::Mutex::new(None),
            closed: CancellationToken::new(),
        }
    }

    /// Returns how many have failed at least once and are tried again.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Returns the handed-over deliveries, for the one task that settles them.
    pub(super) async fn take(&self) -> Option<mpsc::UnboundedReceiver<PendingCopy>> {
        self.taken.lock().await.take()
    }

    /// Drops the deliveries handed over: there is no broker.
    #[cfg(feature = "testing")]
    pub(crate) async fn let_go(&self) {
        drop(self.take().await);
    }

    /// Sets the number of those that have failed at least once.
    pub(super) fn set_waiting(&self, waiting: usize) {
        self.waiting.store(waiting, Ordering::Release);
    }

    /// Waits for [`UnsettledDeliveries::close`].
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Ends the handing over: the deliveries handed over are tried once, and the rest is left to redelivery.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    /// Takes charge of deliveries with their copies. Waits only if too many are unsettled already.
    pub(super) async fn hand_over(
        &self,
        consumer: &IdentityPart,
        stop: &CancellationToken,
        leaving: Vec<(SettledDelivery, Copy)>,
    ) -> Result<(), AbandonedBatch> {
        if leaving.is_empty() {
            return Ok(());
        }
        let tried = CancellationToken::new();
        let guard = Arc::new(tried.clone().drop_guard());
        for (settled, copy) in leaving {
            let DecidedDelivery { delivery, known, .. } = &settled.decided;
            let Some(room) = self.room_for(consumer, stop, delivery, known).await? else { continue };
            let first_try = Some(Arc::clone(&guard));
            // Its receiver ends after the lanes.
            let _ = self.handed.send(PendingCopy { settled, copy, first_try, _room: room });
        }
        drop(guard);
        if self.waiting.load(Ordering::Acquire) == 0 {
            let _ = tokio::time::timeout(FIRST_TRY, tried.cancelled()).await;
        }
        Ok(())
    }

    /// Waits for room. Returns `None` if the delivery's channel is over, so it comes again.
    async fn room_for(
        &self,
        consumer: &IdentityPart,
        stop: &CancellationToken,
        delivery: &Delivery,
        known: &PartialIdentity,
    ) -> Result<Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>, AbandonedBatch> {
        let units = (delivery.size() / UNIT + 1).min(self.units);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        loop {
            let room = async {
                let place = Arc::clone(&self.places).acquire_owned().await;
                (place, Arc::clone(&self.bytes).acquire_many_owned(units).await)
            };
            tokio::select! {
                biased;
                room = room => match room {
                    (Ok(place), Ok(bytes)) => return Ok(Some((place, bytes))),
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
            if logged_at.is_none_or(|at| at.elapsed() >= LOG_AGAIN) {
                *logged_at = Some(Instant::now());
                tracing::error!(
                    %consumer,
                    queue = delivery.message.queue,
                    tenant = known.tenant.as_ref().map(tracing::field::display),
                    key = known.key.as_ref().map(tracing::field::display),
                    "consumer waits: the limit of unsettled messages is reached, as copies cannot be published"
                );
            }
        }
    }
}
