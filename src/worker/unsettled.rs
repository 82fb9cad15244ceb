//! Deliveries that can be acknowledged only when a copy of theirs has arrived, beside the lanes: nobody waits for a copy that the
//! broker does not take, but the message it is of.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::lane::Abandoned;
use super::prepare::Known;
use super::settle::acknowledge;
use super::shared::Shared;
use crate::amqp::{Copy, Delivery, Epoch, PublishError};
use crate::backoff::Backoff;
use crate::config::Consumer;
use crate::failpoint::step;
use crate::outcome::Outcome;

/// A lane waits so long for the first try, where nothing is in trouble: what is settled before its next batch can't come again.
const FIRST_TRY: Duration = Duration::from_secs(1);

/// Copies that failed before are tried one by one, and so many of them before new ones have their turn.
const IN_ROW: usize = 16;

/// How often it is told what stays unsettled, and why.
const TELL: Duration = Duration::from_secs(60);

/// How often acknowledgements that are held back behind an unsettled delivery are sent.
const RELEASE: Duration = Duration::from_secs(1);

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
    told: std::sync::Mutex<Option<Instant>>,
    closed: CancellationToken,
}

/// A delivery and its copy.
struct Leaving {
    delivery: Box<Delivery>,
    known: Known,
    outcome: Outcome,
    copy: Copy,
    /// Until its first try is over.
    first_try: Option<Arc<DropGuard>>,
    _room: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

/// One that has failed.
struct Waiting {
    leaving: Leaving,
    error: PublishError,
    backoff: Backoff,
    again_at: Instant,
}

impl Unsettled {
    /// For a quarter of what the broker delivers ahead, and of the bytes that may be held: the rest is for what goes on.
    pub(crate) fn new(consumer: &Consumer) -> Self {
        let (handed, taken) = mpsc::unbounded_channel();
        let places = usize::from(consumer.prefetch / 4).max(1);
        let units = (usize::try_from(consumer.buffer).unwrap_or(usize::MAX) / 4 / UNIT).max(1);
        Self {
            handed,
            taken: Mutex::new(Some(taken)),
            places: Arc::new(Semaphore::new(places)),
            bytes: Arc::new(Semaphore::new(units)),
            units,
            waiting: AtomicUsize::new(0),
            told: std::sync::Mutex::new(None),
            closed: CancellationToken::new(),
        }
    }

    /// How many have failed at least once and are tried again.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// No more will be handed over: what was is tried once, and the rest left to redelivery.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    /// Takes charge of deliveries with their copies. Waits only where too much is unsettled already.
    pub(super) async fn hand_over(
        &self,
        shared: &Shared,
        leaving: Vec<(Box<Delivery>, Known, Outcome, Copy)>,
    ) -> Result<(), Abandoned> {
        if leaving.is_empty() {
            return Ok(());
        }
        let tried = CancellationToken::new();
        let guard = Arc::new(tried.clone().drop_guard());
        for (delivery, known, outcome, copy) in leaving {
            let Some(room) = self.room_for(shared, &delivery, &known).await? else { continue };
            let first_try = Some(Arc::clone(&guard));
            // Its receiver ends after the lanes.
            let _ = self.handed.send(Leaving { delivery, known, outcome, copy, first_try, _room: room });
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
        shared: &Shared,
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
                () = shared.stop.cancelled() => return Err(Abandoned),
                () = tokio::time::sleep(FIRST_TRY) => {}
            }
            if delivery.epoch.is_over() {
                return Ok(None);
            }
            let mut told = self.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if told.is_none_or(|at| at.elapsed() >= TELL) {
                *told = Some(Instant::now());
                tracing::error!(
                    consumer = %shared.consumer.name,
                    queue = delivery.message.queue,
                    tenant = known.tenant.as_ref().map(tracing::field::display),
                    key = known.key.as_ref().map(tracing::field::display),
                    "the consumer waits: as many messages stay unsettled as may, since their copies don't arrive"
                );
            }
        }
    }
}

/// Publishes copies and acknowledges their originals until [`Unsettled::close`]. A copy that fails is tried again after growing
/// pauses, by itself, for as long as its original's channel lives: without a confirmed copy an original is never acknowledged.
pub(crate) async fn part(shared: Arc<Shared>) {
    let Some(handed) = shared.unsettled.taken.lock().await.take() else { return };
    let mut waiting = Vec::new();
    tokio::select! {
        biased;
        // Dropped half-way: what is not known to have arrived is not acknowledged.
        () = shared.abandon.cancelled() => {}
        () = work(&shared, handed, &mut waiting) => {}
    }
    if !waiting.is_empty() {
        let messages = waiting.len();
        tracing::warn!(consumer = %shared.consumer.name, messages, "messages stay unsettled: they come again");
    }
}

async fn work(shared: &Shared, mut handed: mpsc::UnboundedReceiver<Leaving>, waiting: &mut Vec<Waiting>) {
    let mut told = HashMap::new();
    let mut released = Instant::now();
    loop {
        let mut fresh = Vec::new();
        let mut over = false;
        let soon = Instant::now() + RELEASE;
        let next = waiting.iter().map(|waiting| waiting.again_at).min().map_or(soon, |at| at.min(soon));
        tokio::select! {
            biased;
            _ = handed.recv_many(&mut fresh, usize::from(u16::MAX)) => {}
            () = shared.unsettled.closed.cancelled() => over = true,
            () = tokio::time::sleep_until(next), if !waiting.is_empty() => {}
        }
        // What came on a channel that is gone comes again, and its copy then.
        waiting.retain(|waiting| !waiting.leaving.delivery.epoch.is_over());
        fresh.retain(|leaving| !leaving.delivery.epoch.is_over());
        for (leaving, error) in publish(shared, fresh).await {
            waiting.push(Waiting::new(leaving, error));
        }
        if over {
            return;
        }
        tokio::select! {
            biased;
            // They come again: nobody waits for them at the end.
            () = shared.unsettled.closed.cancelled() => {}
            () = try_again(shared, waiting) => {}
        }
        shared.unsettled.waiting.store(waiting.len(), Ordering::Release);
        tell(shared, waiting, &mut told);
        if released.elapsed() >= RELEASE {
            release(shared, waiting).await;
            released = Instant::now();
        }
    }
}

/// Publishes copies and acknowledges the originals of those that have arrived; returns the others.
async fn publish(shared: &Shared, leaving: Vec<Leaving>) -> Vec<(Leaving, PublishError)> {
    if leaving.is_empty() {
        return Vec::new();
    }
    let copies: Vec<Copy> = leaving.iter().map(|leaving| leaving.copy.clone()).collect();
    step("worker.publish.before");
    let results = shared.publisher.publish(&copies).await;
    step("worker.publish.after");
    let mut arrived = Vec::new();
    let mut failed = Vec::new();
    for (leaving, result) in leaving.into_iter().zip(results) {
        match result {
            Err(error) => failed.push((leaving, error)),
            Ok(_) => arrived.push(leaving),
        }
    }
    acknowledge(shared, arrived.iter().map(|leaving| (&*leaving.delivery, &leaving.outcome))).await;
    for (leaving, _) in &mut failed {
        leaving.first_try = None;
    }
    failed
}

/// Tries those again whose pause is over, each by itself. Where the connection fails, nothing is known of the others: they wait
/// as long, and the next time another one is first.
async fn try_again(shared: &Shared, waiting: &mut Vec<Waiting>) {
    waiting.sort_by_key(|waiting| waiting.again_at);
    let now = Instant::now();
    let due = waiting.iter().take(IN_ROW).take_while(|waiting| waiting.again_at <= now).count();
    let mut due = waiting.drain(..due).collect::<Vec<_>>().into_iter();
    while let Some(Waiting { leaving, mut backoff, .. }) = due.next() {
        let Some((leaving, error)) = publish(shared, vec![leaving]).await.pop() else { continue };
        let is_of_one = error.is_of_one();
        let again_at = Instant::now() + backoff.next();
        if !is_of_one {
            waiting.extend(due);
            for waiting in waiting.iter_mut() {
                waiting.again_at = waiting.again_at.max(again_at);
            }
            waiting.push(Waiting { leaving, error, backoff, again_at });
            return;
        }
        waiting.push(Waiting { leaving, error, backoff, again_at });
    }
}

/// Says once a minute for each reason what waits, with one of them by name; and when all is well again.
fn tell(shared: &Shared, waiting: &[Waiting], told: &mut HashMap<&'static str, Instant>) {
    let consumer = &shared.consumer.name;
    if waiting.is_empty() {
        if !told.is_empty() {
            tracing::info!(%consumer, "all copies for retry and dead-letter queues have arrived");
            told.clear();
        }
        return;
    }
    let mut reasons: HashMap<&'static str, (usize, &Waiting)> = HashMap::new();
    for one in waiting {
        reasons.entry(one.error.reason()).or_insert((0, one)).0 += 1;
    }
    for (reason, (copies, Waiting { leaving, error, .. })) in reasons {
        if told.get(reason).is_some_and(|at| at.elapsed() < TELL) {
            continue;
        }
        told.insert(reason, Instant::now());
        tracing::error!(
            %consumer,
            queue = leaving.delivery.message.queue,
            tenant = leaving.known.tenant.as_ref().map(tracing::field::display),
            key = leaving.known.key.as_ref().map(tracing::field::display),
            reason,
            copies,
            error = %error,
            "copies for retry or dead-letter queues did not arrive; their originals stay where they are"
        );
    }
}

/// Sends the acknowledgements that are held back behind what waits: it may wait for long.
async fn release(shared: &Shared, waiting: &[Waiting]) {
    let mut epochs: Vec<&Arc<Epoch>> = Vec::new();
    for epoch in waiting.iter().map(|waiting| &waiting.leaving.delivery.epoch) {
        if !epochs.iter().any(|known| Arc::ptr_eq(known, epoch)) {
            epochs.push(epoch);
        }
    }
    for epoch in epochs {
        if let Err(error) = epoch.release().await {
            tracing::debug!(consumer = %shared.consumer.name, error = %error, "acknowledgements did not arrive");
        }
    }
}

impl Waiting {
    fn new(leaving: Leaving, error: PublishError) -> Self {
        let mut backoff = Backoff::default();
        let again_at = Instant::now() + backoff.next();
        Self { leaving, error, backoff, again_at }
    }
}
