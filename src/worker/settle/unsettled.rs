//! Where lanes leave deliveries that can be acknowledged only when a copy of theirs has arrived: bounded in number and bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::settled::Settled;
use crate::amqp::{Copy, Delivery};
use crate::config::Consumer;
use crate::identity::IdentityPart;
use crate::worker::abandoned::Abandoned;
use crate::worker::candidate::Known;

/// A lane waits so long for the first try, where nothing is in trouble: what is settled before its next batch can't come again.
const FIRST_TRY: Duration = Duration::from_secs(1);

/// How often it is logged what stays unsettled, and why.
pub(super) const LOG_AGAIN: Duration = Duration::from_secs(60);

/// The unit in which bytes are counted: a semaphore holds fewer permits than there may be bytes.
const UNIT: usize = 1 << 10;

/// Where the lanes of a consumer leave what they can't settle at once.
pub(crate) struct Unsettled {
    handed: mpsc::UnboundedSender<Leaving>,
    taken: Mutex<Option<mpsc::UnboundedReceiver<Leaving>>>,
    places: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    /// Units of `bytes` in all.
    units: usize,
    /// Those that have failed at least once.
    waiting: AtomicUsize,
    logged_at: std::sync::Mutex<Option<Instant>>,
    closed: CancellationToken,
}

/// A delivery and its copy.
pub(super) struct Leaving {
    pub(super) settled: Settled,
    pub(super) copy: Copy,
    /// Until its first try is over.
    pub(super) first_try: Option<Arc<DropGuard>>,
    _room: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

impl Unsettled {
    /// For so many, and a quarter of the bytes that may be held: the rest is for what goes on.
    pub(crate) fn new(consumer: &Consumer, places: usize) -> Self {
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

    /// How many have failed at least once and are tried again.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// What was handed over, for the one task that takes care of it.
    pub(super) async fn take(&self) -> Option<mpsc::UnboundedReceiver<Leaving>> {
        self.taken.lock().await.take()
    }

    /// Nobody takes care of what is handed over: there is no broker.
    #[cfg(feature = "testing")]
    pub(crate) async fn let_go(&self) {
        drop(self.take().await);
    }

    /// So many have failed at least once by now.
    pub(super) fn set_waiting(&self, waiting: usize) {
        self.waiting.store(waiting, Ordering::Release);
    }

    /// Ends with [`Unsettled::close`].
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// No more will be handed over: what was is tried once, and the rest left to redelivery.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    /// Takes charge of deliveries with their copies. Waits only where too much is unsettled already.
    pub(super) async fn hand_over(
        &self,
        consumer: &IdentityPart,
        stop: &CancellationToken,
        leaving: Vec<(Settled, Copy)>,
    ) -> Result<(), Abandoned> {
        if leaving.is_empty() {
            return Ok(());
        }
        let tried = CancellationToken::new();
        let guard = Arc::new(tried.clone().drop_guard());
        for (settled, copy) in leaving {
            let Settled { delivery, known, .. } = &settled;
            let Some(room) = self.room_for(consumer, stop, delivery, known).await? else { continue };
            let first_try = Some(Arc::clone(&guard));
            // Its receiver ends after the lanes.
            let _ = self.handed.send(Leaving { settled, copy, first_try, _room: room });
        }
        drop(guard);
        if self.waiting.load(Ordering::Acquire) == 0 {
            let _ = tokio::time::timeout(FIRST_TRY, tried.cancelled()).await;
        }
        Ok(())
    }

    /// `None`: the delivery's channel is over, so it comes again.
    async fn room_for(
        &self,
        consumer: &IdentityPart,
        stop: &CancellationToken,
        delivery: &Delivery,
        known: &Known,
    ) -> Result<Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>, Abandoned> {
        let units = (delivery.message.body.len() / UNIT + 1).min(self.units);
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
                    // Never: nobody closes them.
                    _ => return Err(Abandoned),
                },
                () = stop.cancelled() => return Err(Abandoned),
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
                    "the consumer waits: as many messages stay unsettled as may, since their copies don't arrive"
                );
            }
        }
    }
}
