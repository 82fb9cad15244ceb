//! Keeps one queue subscribed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinSet;

use super::shared::ConsumerContext;
use oncely_amqp::{ChannelLife, Delivery, Subscription};
use oncely_core::backoff::Backoff;
use oncely_process::vitals::LoopBeat;

/// Most bytes of a body that is read even where `max_body` is less, to move the message to the dead-letter queue: a megabyte more than
/// RabbitMQ's own limit since 4.0 (`max_message_size`).
const MAX_READ_BODY: u32 = 17 << 20;

/// Interval between checks for acknowledgements that are held back and must be sent.
const HELD_BACK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time of a step of opening or ending a subscription, or of a pause in between. Each has limits of its own, the longest of ten
/// minutes (`rabbitmq.timeout`).
const MAX_STEP_TIME: Duration = Duration::from_secs(900);

/// Subscribes to `queue`, again whenever the subscription ends, until the worker stops; then holds the last channel open until all work is
/// done, so that it can still be acknowledged.
pub(crate) async fn subscribe(
    shared: Arc<ConsumerContext>,
    queue: String,
    deliveries: mpsc::Sender<Box<Delivery>>,
) {
    let mut backoff = Backoff::default();
    let beat = shared.liveness.watch(format!("the subscription to {queue}"));
    // Channels from before a pause that is over, as long as a batch of theirs is at work.
    let mut closing = JoinSet::new();
    while !shared.stop.is_cancelled() {
        beat.begin_step(MAX_STEP_TIME);
        while closing.try_join_next().is_some() {}
        let closings = shared.gate.closing_count();
        if !shared.gate.is_open() {
            wait_for_resumption(&shared, &beat, &queue).await;
            continue;
        }
        if !shared.budget.has_room() {
            wait_for_room(&shared, &beat, &queue).await;
            continue;
        }
        if let Some(mut subscription) = open_subscription(&shared, &queue).await {
            let mut has_delivered = false;
            let end =
                forward(&shared, &beat, closings, &mut subscription, &deliveries, &mut has_delivered).await;
            beat.begin_step(MAX_STEP_TIME);
            match end {
                Ok(SubscriptionEnd::Stop) => {
                    cancel(&mut subscription).await;
                    subscription.drop_deliveries_until(shared.done.cancelled()).await;
                    close(subscription).await;
                    break;
                }
                Ok(SubscriptionEnd::Paused) => {
                    cancel(&mut subscription).await;
                    // It lasts until the batches are settled, the pause only until it is ended.
                    closing.spawn(close_when_at_rest(
                        Arc::clone(&shared),
                        subscription,
                        shared.gate.closing_count(),
                    ));
                    wait_for_rest(&shared, &beat, &mut closing).await;
                    continue;
                }
                Err(reason) => {
                    if has_delivered {
                        backoff.reset();
                    }
                    let is_full = !shared.budget.has_room();
                    let consumer = &shared.consumer.name;
                    tracing::warn!(%consumer, queue, reason, full = is_full, "subscription lost; subscribing again");
                    subscription.close().await;
                }
            }
        }
        tokio::select! {
            () = shared.stop.cancelled() => {}
            () = tokio::time::sleep(backoff.next_pause()) => {}
        }
    }
    beat.begin_step(MAX_STEP_TIME);
    while closing.join_next().await.is_some() {}
}

/// Opens a subscription; returns `None` if that fails.
async fn open_subscription(shared: &ConsumerContext, queue: &str) -> Option<Subscription> {
    let consumer = &shared.consumer.name;
    let prefetch = shared.consumer.prefetch;
    let purpose = shared.application();
    let max_body = shared.consumer.max_body.max(MAX_READ_BODY).into();
    let subscription =
        Subscription::open(&shared.rabbitmq, &purpose, queue, prefetch, max_body, &shared.budget);
    match subscription.await {
        Ok(subscription) => {
            tracing::info!(%consumer, queue, "subscribed");
            shared.health.record_subscription(queue, subscription.channel());
            return Some(subscription);
        }
        Err(error) if error.reply_code() == Some(406) => {
            tracing::error!(
                %consumer, queue, error = %error,
                "cannot subscribe: only classic and quorum queues can be consumed, no streams; retrying"
            );
        }
        Err(error) => tracing::warn!(%consumer, queue, error = %error, "cannot subscribe; retrying"),
    }
    None
}

/// Waits until deliveries hold fewer bytes than the buffer has, or the worker stops.
async fn wait_for_room(shared: &ConsumerContext, beat: &LoopBeat, queue: &str) {
    beat.set_idle();
    tracing::warn!(consumer = %shared.consumer.name, queue, buffer = shared.consumer.buffer,
        "deliveries are paused: unsettled messages have reached consumers.buffer");
    tokio::select! {
        () = shared.stop.cancelled() => {}
        () = shared.budget.wait_for_room() => {}
    }
}

/// Waits until one of the channels from before a pause is closed, the pause is over, or the worker stops.
async fn wait_for_rest(shared: &ConsumerContext, beat: &LoopBeat, closing: &mut JoinSet<()>) {
    beat.set_idle();
    let mut pauses = shared.gate.watch();
    tokio::select! {
        () = shared.stop.cancelled() => {}
        () = pauses.wait_until_open() => {}
        _ = closing.join_next() => {}
    }
}

/// Waits until the consumer is not paused any more, or the worker stops.
async fn wait_for_resumption(shared: &ConsumerContext, beat: &LoopBeat, queue: &str) {
    let consumer = &shared.consumer.name;
    match shared.gate.current_pause() {
        Some(pause) => {
            tracing::info!(%consumer, queue, by = pause.paused_by, reason = pause.reason, until = ?pause.paused_until,
                "consumer paused: not subscribed");
        }
        None => tracing::info!(%consumer, queue, "waiting until pauses are read before subscribing"),
    }
    beat.set_idle();
    let mut pauses = shared.gate.watch();
    tokio::select! {
        () = shared.stop.cancelled() => {}
        () = pauses.wait_until_open() => tracing::info!(%consumer, queue, "consumer resumed"),
    }
}

/// Cancels the subscription: the broker sends no more. A failure is logged.
async fn cancel(subscription: &mut Subscription) {
    if let Err(error) = subscription.cancel().await {
        tracing::debug!(error = %error, "cancelling a subscription failed");
    }
}

/// Sends the last acknowledgements, and closes the connection.
async fn close(subscription: Subscription) {
    if let Err(error) = subscription.channel().release().await {
        tracing::debug!(error = %error, "the last acknowledgements did not arrive");
    }
    subscription.close().await;
}

/// Ends a paused consumer's subscription, to which the broker sends nothing more: batches at work are settled, and the rest goes back when
/// the channel is closed. A handler that does not return delays this until its deadline at most: its message comes again then.
async fn close_when_at_rest(shared: Arc<ConsumerContext>, mut subscription: Subscription, closings: u64) {
    let limit = shared.consumer.deadline + shared.postgres.client_timeout();
    let rest = async {
        tokio::select! {
            () = shared.done.cancelled() => Ok(()),
            result = tokio::time::timeout(limit, shared.gate.wait_until_at_rest(closings)) => result,
        }
    };
    if subscription.drop_deliveries_until(rest).await.is_err() {
        tracing::warn!(consumer = %shared.consumer.name, ?limit,
            "batch in progress not finished before the pause; its messages are redelivered");
    }
    close(subscription).await;
}

/// Reason why a subscription ends without a fault.
enum SubscriptionEnd {
    /// The worker stops.
    Stop,
    /// The consumer was paused.
    Paused,
}

/// Sends acknowledgements that are held back: all of them behind a message that stays unread and is never acknowledged, else those that the
/// broker may wait for behind a message that stays at work.
async fn release_held_back(shared: &ConsumerContext, channel: &ChannelLife, has_unread: bool) {
    let released = match has_unread {
        true => channel.release().await,
        false => Ok(()),
    };
    for result in [released, channel.release_where_stuck().await] {
        if let Err(error) = result {
            tracing::debug!(consumer = %shared.consumer.name, error = %error, "acknowledgements did not arrive");
        }
    }
}

/// Parks a delivery with a body that is too large to be read: the broker sends others in its place.
fn park_unread(shared: &ConsumerContext, mut delivery: Box<Delivery>, bytes: u64) -> Box<Delivery> {
    tracing::error!(consumer = %shared.consumer.name, queue = delivery.message.queue, bytes,
        "a message is too large to be read, and stays in its queue: raise consumers.max_body to its size, or remove it");
    delivery.park();
    delivery
}

/// Forwards deliveries until it has to stop, or to pause; sets `has_delivered` with the first one.
///
/// # Errors
/// If no more deliveries come, with the reason: always a fault, as a stream does not end normally.
async fn forward(
    shared: &ConsumerContext,
    beat: &LoopBeat,
    closings: u64,
    subscription: &mut Subscription,
    deliveries: &mpsc::Sender<Box<Delivery>>,
    has_delivered: &mut bool,
) -> Result<SubscriptionEnd, String> {
    let no_lane = || "no lane accepts deliveries".to_owned();
    let channel = Arc::clone(subscription.channel());
    let mut check_ticks = tokio::time::interval(HELD_BACK_INTERVAL);
    check_ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut pauses = shared.gate.watch();
    // Delivery that waits for room before the lanes: a lost channel may have left as many there as the new one may send. That counts as
    // waiting for work: the loop goes on.
    let mut waiting: Option<Box<Delivery>> = None;
    let mut unread = Vec::new();
    loop {
        if shared.gate.closing_count() != closings {
            return Ok(SubscriptionEnd::Paused);
        }
        let next = tokio::select! {
            biased;
            () = shared.stop.cancelled() => return Ok(SubscriptionEnd::Stop),
            room = deliveries.reserve(), if waiting.is_some() => {
                let room = room.map_err(|_| no_lane())?;
                if let Some(delivery) = waiting.take() {
                    room.send(delivery);
                }
                continue;
            }
            next = subscription.next(), if waiting.is_none() => next,
            () = pauses.wait_for_change() => continue,
            _ = check_ticks.tick() => {
                beat.begin_step(HELD_BACK_INTERVAL + shared.rabbitmq.timeout);
                // The stream, which would report it, is not polled while a delivery waits.
                if waiting.is_some() && channel.is_over() {
                    return Err("the channel was closed".to_owned());
                }
                if waiting.is_none() && subscription.is_stuck() {
                    return Err("the broker does not answer basic.cancel".to_owned());
                }
                release_held_back(shared, &channel, !unread.is_empty()).await;
                continue;
            }
            // Waiting deliveries must not keep others from coming.
            () = channel.wait_until_crowded(), if !subscription.is_renewing() => {
                tracing::debug!(consumer = %shared.consumer.name, "renewing the subscription");
                subscription.begin_renewal();
                continue;
            }
            // It can't acknowledge any more.
            () = channel.wait_until_ended() => return Err("an acknowledgement could not be sent".to_owned()),
        };
        let Some(delivery) = next else {
            if !subscription.resubscribe().await.map_err(|error| error.to_string())? {
                return Err("ended by the broker".to_owned());
            }
            tracing::debug!(consumer = %shared.consumer.name, "subscription renewed");
            continue;
        };
        let delivery = delivery.map_err(|error| error.to_string())?;
        *has_delivered = true;
        if let Some(bytes) = delivery.unread_body() {
            unread.push(park_unread(shared, delivery, bytes));
            continue;
        }
        shared.counters.count_delivery(delivery.message.redelivered);
        match deliveries.try_send(delivery) {
            Ok(()) => {}
            Err(TrySendError::Full(delivery)) => waiting = Some(delivery),
            Err(TrySendError::Closed(_)) => return Err(no_lane()),
        }
    }
}
