//! Publishes the copies of deliveries beside the lanes, and acknowledges the originals when their copies have arrived: nobody waits for a
//! copy that the broker does not take, but the message it is of.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::acknowledge::acknowledge;
use super::unsettled::{LOG_AGAIN, Leaving};
use crate::amqp::{ChannelLife, Copy, PublishError};
use crate::backoff::Backoff;
use crate::failpoint::step;
use crate::worker::shared::Shared;

/// Copies that failed before are tried one by one, and so many of them before new ones have their turn.
const IN_ROW: usize = 16;

/// How often acknowledgements that are held back behind an unsettled delivery are sent.
const RELEASE: Duration = Duration::from_secs(1);

/// One that has failed.
struct Waiting {
    leaving: Leaving,
    error: PublishError,
    backoff: Backoff,
    again_at: Instant,
}

/// Publishes copies and acknowledges their originals until [`super::unsettled::Unsettled::close`]. A copy that fails is tried again after growing
/// pauses, by itself, for as long as its original's channel lives: without a confirmed copy an original is never acknowledged.
pub(crate) async fn settle_copies(shared: Arc<Shared>) {
    let Some(handed) = shared.unsettled.take().await else { return };
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
    let mut logged = HashMap::new();
    let mut released = Instant::now();
    loop {
        let mut fresh = Vec::new();
        let mut over = false;
        let soon = Instant::now() + RELEASE;
        let next = waiting.iter().map(|waiting| waiting.again_at).min().map_or(soon, |at| at.min(soon));
        tokio::select! {
            biased;
            _ = handed.recv_many(&mut fresh, usize::from(u16::MAX)) => {}
            () = shared.unsettled.closed() => over = true,
            () = tokio::time::sleep_until(next), if !waiting.is_empty() => {}
        }
        // What came on a channel that is gone comes again, and its copy then.
        waiting.retain(|waiting| !waiting.leaving.settled.delivery.channel.is_over());
        fresh.retain(|leaving| !leaving.settled.delivery.channel.is_over());
        for (leaving, error) in publish(shared, fresh).await {
            waiting.push(Waiting::new(leaving, error));
        }
        if over {
            return;
        }
        tokio::select! {
            biased;
            // They come again: nobody waits for them at the end.
            () = shared.unsettled.closed() => {}
            () = try_again(shared, waiting) => {}
        }
        shared.unsettled.set_waiting(waiting.len());
        log(shared, waiting, &mut logged);
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
    acknowledge(shared, arrived.iter().map(|leaving| &leaving.settled)).await;
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
fn log(shared: &Shared, waiting: &[Waiting], logged: &mut HashMap<&'static str, Instant>) {
    let consumer = &shared.consumer.name;
    if waiting.is_empty() {
        if !logged.is_empty() {
            tracing::info!(%consumer, "all copies for retry and dead-letter queues have arrived");
            logged.clear();
        }
        return;
    }
    let mut reasons: HashMap<&'static str, (usize, &Waiting)> = HashMap::new();
    for one in waiting {
        reasons.entry(one.error.reason()).or_insert((0, one)).0 += 1;
    }
    for (reason, (copies, Waiting { leaving, error, .. })) in reasons {
        if logged.get(reason).is_some_and(|at| at.elapsed() < LOG_AGAIN) {
            continue;
        }
        logged.insert(reason, Instant::now());
        tracing::error!(
            %consumer,
            queue = leaving.settled.delivery.message.queue,
            tenant = leaving.settled.known.tenant.as_ref().map(tracing::field::display),
            key = leaving.settled.known.key.as_ref().map(tracing::field::display),
            reason,
            copies,
            error = %error,
            "copies for retry or dead-letter queues did not arrive; their originals stay where they are"
        );
    }
}

/// Sends the acknowledgements that are held back behind what waits: it may wait for long.
async fn release(shared: &Shared, waiting: &[Waiting]) {
    let mut channels: Vec<&Arc<ChannelLife>> = Vec::new();
    for channel in waiting.iter().map(|waiting| &waiting.leaving.settled.delivery.channel) {
        if !channels.iter().any(|known| Arc::ptr_eq(known, channel)) {
            channels.push(channel);
        }
    }
    for channel in channels {
        if let Err(error) = channel.release().await {
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
