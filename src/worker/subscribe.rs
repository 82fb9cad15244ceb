//! Keeps one queue subscribed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::shared::Shared;
use crate::amqp::{Delivery, Subscription};
use crate::backoff::Backoff;
use crate::vitals::Beat;

/// Between two looks for acknowledgements that are held back and must not be.
const LOOK: Duration = Duration::from_secs(1);
/// A step of making a subscription, of ending one, or the pause in between. Each has limits of its own, the longest of ten minutes
/// (`rabbitmq.timeout`).
const LONGEST: Duration = Duration::from_secs(900);

/// Subscribes to `queue`, again whenever the subscription ends, until told to stop; then holds the last channel open until
/// all work is done, so that it can still be acknowledged.
pub(crate) async fn subscribe(shared: Arc<Shared>, queue: String, deliveries: mpsc::Sender<Box<Delivery>>) {
    let mut backoff = Backoff::default();
    let consumer = &shared.consumer.name;
    let beat = shared.liveness.watch(format!("the subscription to {queue}"));
    while !shared.stop.is_cancelled() {
        beat.expect(LONGEST);
        let closings = shared.gate.closings();
        if let Some(pause) = shared.gate.pause() {
            tracing::info!(%consumer, queue, by = pause.paused_by, reason = pause.reason, until = ?pause.paused_until, "paused: not subscribed");
            beat.idle();
            let mut pauses = shared.gate.watch();
            tokio::select! {
                () = shared.stop.cancelled() => break,
                () = pauses.open() => {}
            }
            tracing::info!(%consumer, queue, "resumed");
            continue;
        }
        if !shared.budget.has_room() {
            beat.idle();
            tracing::warn!(%consumer, queue, buffer = shared.consumer.buffer, "what is unsettled uses up the buffer: nothing is fetched");
            tokio::select! {
                () = shared.stop.cancelled() => break,
                () = shared.budget.room() => {}
            }
        }
        let opened = Subscription::open(
            &shared.rabbitmq,
            &shared.application(),
            &queue,
            shared.consumer.prefetch,
            &shared.budget,
        )
        .await;
        match opened {
            Ok(mut subscription) => {
                tracing::info!(%consumer, queue, "subscribed");
                shared.health.subscribed(&queue, subscription.channel());
                let ended = pump(&shared, &beat, closings, &mut subscription, &deliveries).await;
                beat.expect(LONGEST);
                if let Ended::Stop = ended {
                    if let Err(error) = subscription.cancel().await {
                        tracing::debug!(error = %error, "cancelling a subscription failed");
                    }
                    subscription.let_go(shared.done.cancelled()).await;
                    if let Err(error) = subscription.channel().release().await {
                        tracing::debug!(error = %error, "the last acknowledgements did not arrive");
                    }
                    subscription.close().await;
                    return;
                }
                if let Ended::Paused = ended {
                    rest(&shared, &mut subscription).await;
                    subscription.close().await;
                    continue;
                }
                if let Ended::Lost { lived: true, .. } = ended {
                    backoff.reset();
                }
                if let Ended::Lost { reason, .. } = ended {
                    let full = !shared.budget.has_room();
                    tracing::warn!(%consumer, queue, reason, full, "the subscription is over; a new one is made");
                }
                subscription.close().await;
            }
            Err(error) if error.reply_code() == Some(406) => {
                tracing::error!(
                    %consumer, queue, error = %error,
                    "cannot subscribe: a stream, or a queue for another use; it must be classic or quorum; tried again"
                );
            }
            Err(error) => {
                tracing::warn!(%consumer, queue, error = %error, "cannot subscribe; tried again");
            }
        }
        tokio::select! {
            () = shared.stop.cancelled() => {}
            () = tokio::time::sleep(backoff.next()) => {}
        }
    }
}

/// Somebody has paused the consumer: the broker sends nothing more, what lanes are at work on is settled, and the rest goes back when the
/// channel is closed. A handler that does not return keeps nobody waiting for longer than its deadline: its message comes again then.
async fn rest(shared: &Shared, subscription: &mut Subscription) {
    if let Err(error) = subscription.cancel().await {
        tracing::debug!(error = %error, "cancelling a subscription failed");
    }
    let limit = shared.consumer.deadline + shared.postgres.client_timeout();
    let at_rest = tokio::time::timeout(limit, shared.gate.at_rest());
    if subscription.let_go(at_rest).await.is_err() {
        tracing::warn!(consumer = %shared.consumer.name, ?limit, "paused while a batch is at work; its messages come again");
    }
    if let Err(error) = subscription.channel().release().await {
        tracing::debug!(error = %error, "the last acknowledgements did not arrive");
    }
}

enum Ended {
    /// We were told to.
    Stop,
    /// Somebody has paused the consumer.
    Paused,
    /// Whatever the reason, it is a fault: a stream that ends is never normal.
    Lost { reason: String, lived: bool },
}

async fn pump(
    shared: &Shared,
    beat: &Beat,
    closings: u64,
    subscription: &mut Subscription,
    deliveries: &mpsc::Sender<Box<Delivery>>,
) -> Ended {
    let mut lived = false;
    let channel = Arc::clone(subscription.channel());
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut pauses = shared.gate.watch();
    loop {
        if shared.gate.closings() != closings {
            return Ended::Paused;
        }
        let next = tokio::select! {
            biased;
            () = shared.stop.cancelled() => return Ended::Stop,
            next = subscription.next() => next,
            () = pauses.changed() => continue,
            _ = looks.tick() => {
                beat.expect(LOOK + shared.rabbitmq.timeout);
                // Held back behind a message that stays at work, they may be all that the broker waits for.
                if let Err(error) = channel.release_where_stuck().await {
                    tracing::debug!(consumer = %shared.consumer.name, error = %error, "acknowledgements did not arrive");
                }
                continue;
            }
            // Nothing can be acknowledged on it any more.
            () = channel.ended() => {
                return Ended::Lost { reason: "an acknowledgement could not be sent".to_owned(), lived };
            }
        };
        let delivery = match next {
            None => {
                return Ended::Lost { reason: "the broker ended it".to_owned(), lived };
            }
            Some(Err(error)) => {
                return Ended::Lost { reason: error.to_string(), lived };
            }
            Some(Ok(delivery)) => delivery,
        };
        lived = true;
        shared.counters.delivered(delivery.message.redelivered);
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return Ended::Stop,
            sent = deliveries.send(delivery) => if sent.is_err() {
                return Ended::Lost { reason: "no lane takes deliveries any more".to_owned(), lived };
            },
        }
    }
}
