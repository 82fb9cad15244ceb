//! Publishes the copies of deliveries beside the lanes, and acknowledges the originals when their copies have arrived: a copy that the
//! broker does not take delays its own message only.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::decided::acknowledge;
use super::unsettled::{LOG_INTERVAL, PendingCopy};
use crate::worker::shared::ConsumerContext;
use oncely_amqp::{ChannelLife, Copy, PublishError};
use oncely_core::backoff::Backoff;
use oncely_failpoint::step;

/// Maximum number of copies that failed before and are tried again before new ones, one by one.
const MAX_RETRIES_AT_ONCE: usize = 16;

/// Interval at which acknowledgements that are held back behind an unsettled delivery are sent.
const RELEASE_INTERVAL: Duration = Duration::from_secs(1);

/// A copy that has failed.
struct FailedCopy {
    leaving: PendingCopy,
    error: PublishError,
    backoff: Backoff,
    retry_at: Instant,
}

/// Publishes copies and acknowledges their originals until [`super::unsettled::UnsettledDeliveries::close`]. A copy that fails is tried
/// again after growing pauses, by itself, for as long as its original's channel lives: without a confirmed copy an original is never
/// acknowledged.
pub(crate) async fn settle_copies(shared: Arc<ConsumerContext>) {
    let Some(receiver) = shared.unsettled.take().await else { return };
    let mut waiting = Vec::new();
    tokio::select! {
        biased;
        // Dropped half-way: the originals of copies that are not known to have arrived are not acknowledged.
        () = shared.abandon.cancelled() => {}
        () = publish_until_closed(&shared, receiver, &mut waiting) => {}
    }
    if !waiting.is_empty() {
        let messages = waiting.len();
        tracing::warn!(consumer = %shared.consumer.name, messages, "messages left unsettled; they are redelivered");
    }
}

/// Publishes copies handed over, and tries those that failed before again, until no more can come; sends held-back acknowledgements
/// meanwhile.
async fn publish_until_closed(
    shared: &ConsumerContext,
    mut receiver: mpsc::UnboundedReceiver<PendingCopy>,
    waiting: &mut Vec<FailedCopy>,
) {
    let mut logged = HashMap::new();
    let mut last_release = Instant::now();
    loop {
        let mut fresh = Vec::new();
        let mut is_over = false;
        let release_at = Instant::now() + RELEASE_INTERVAL;
        let next =
            waiting.iter().map(|waiting| waiting.retry_at).min().map_or(release_at, |at| at.min(release_at));
        tokio::select! {
            biased;
            _ = receiver.recv_many(&mut fresh, usize::from(u16::MAX)) => {}
            () = shared.unsettled.wait_until_closed() => is_over = true,
            () = tokio::time::sleep_until(next), if !waiting.is_empty() => {}
        }
        // A delivery of a lost channel comes again, and its copy then.
        waiting.retain(|waiting| !waiting.leaving.settled.decided.delivery.channel.is_over());
        fresh.retain(|leaving| !leaving.settled.decided.delivery.channel.is_over());
        for (leaving, error) in publish(shared, fresh).await {
            waiting.push(FailedCopy::new(leaving, error));
        }
        if is_over {
            return;
        }
        tokio::select! {
            biased;
            // They come again: a stop does not wait for them.
            () = shared.unsettled.wait_until_closed() => {}
            () = try_again(shared, waiting) => {}
        }
        shared.unsettled.set_waiting(waiting.len());
        log_waiting(shared, waiting, &mut logged);
        if last_release.elapsed() >= RELEASE_INTERVAL {
            release_acknowledgements(shared, waiting).await;
            last_release = Instant::now();
        }
    }
}

/// Publishes copies and acknowledges the originals of those that have arrived; returns the others.
async fn publish(shared: &ConsumerContext, pending: Vec<PendingCopy>) -> Vec<(PendingCopy, PublishError)> {
    if pending.is_empty() {
        return Vec::new();
    }
    let copies: Vec<&Copy> = pending.iter().map(|one| &one.copy).collect();
    step("worker.publish.before");
    let results = shared.publisher.publish(&copies).await;
    step("worker.publish.after");
    let mut arrived = Vec::new();
    let mut failed = Vec::new();
    for (copy, result) in pending.into_iter().zip(results) {
        match result {
            Err(error) => failed.push((copy, error)),
            Ok(_) => arrived.push(copy),
        }
    }
    acknowledge(shared, arrived.iter().map(|one| &one.settled)).await;
    for (copy, _) in &mut failed {
        copy.first_try = None;
    }
    failed
}

/// Tries again the copies that have waited long enough, one by one. If the connection fails, nothing is known of the others: they wait as
/// long, and the next time another one is first.
async fn try_again(shared: &ConsumerContext, waiting: &mut Vec<FailedCopy>) {
    waiting.sort_by_key(|waiting| waiting.retry_at);
    let now = Instant::now();
    let due = waiting.iter().take(MAX_RETRIES_AT_ONCE).take_while(|waiting| waiting.retry_at <= now).count();
    let mut due = waiting.drain(..due).collect::<Vec<_>>().into_iter();
    while let Some(FailedCopy { leaving, mut backoff, .. }) = due.next() {
        let Some((leaving, error)) = publish(shared, vec![leaving]).await.pop() else { continue };
        let is_of_one = error.is_of_one_copy();
        let retry_at = Instant::now() + backoff.next_pause();
        if !is_of_one {
            waiting.extend(due);
            for waiting in waiting.iter_mut() {
                waiting.retry_at = waiting.retry_at.max(retry_at);
            }
            waiting.push(FailedCopy { leaving, error, backoff, retry_at });
            return;
        }
        waiting.push(FailedCopy { leaving, error, backoff, retry_at });
    }
}

/// Logs once a minute for each reason how many copies wait, with one of them as an example; and when all have arrived.
fn log_waiting(
    shared: &ConsumerContext,
    waiting: &[FailedCopy],
    logged_at: &mut HashMap<&'static str, Instant>,
) {
    let consumer = &shared.consumer.name;
    if waiting.is_empty() {
        if !logged_at.is_empty() {
            tracing::info!(%consumer, "all copies for retry and dead-letter queues are published");
            logged_at.clear();
        }
        return;
    }
    let mut reasons: HashMap<&'static str, (usize, &FailedCopy)> = HashMap::new();
    for one in waiting {
        reasons.entry(one.error.reason()).or_insert((0, one)).0 += 1;
    }
    for (reason, (copies, FailedCopy { leaving, error, .. })) in reasons {
        if logged_at.get(reason).is_some_and(|at| at.elapsed() < LOG_INTERVAL) {
            continue;
        }
        logged_at.insert(reason, Instant::now());
        tracing::error!(
            %consumer,
            queue = leaving.settled.decided.delivery.message.queue,
            tenant = leaving.settled.decided.identity.tenant.as_ref().map(tracing::field::display),
            key = leaving.settled.decided.identity.key.as_ref().map(tracing::field::display),
            reason,
            copies,
            error = %error,
            "cannot publish copies to retry or dead-letter queues; the originals stay unacknowledged"
        );
    }
}

/// Sends the acknowledgements that are held back behind waiting copies: these may wait for long.
async fn release_acknowledgements(shared: &ConsumerContext, waiting: &[FailedCopy]) {
    let mut channels: Vec<&Arc<ChannelLife>> = Vec::new();
    for channel in waiting.iter().map(|waiting| &waiting.leaving.settled.decided.delivery.channel) {
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

impl FailedCopy {
    fn new(leaving: PendingCopy, error: PublishError) -> Self {
        let mut backoff = Backoff::default();
        let retry_at = Instant::now() + backoff.next_pause();
        Self { leaving, error, backoff, retry_at }
    }
}
