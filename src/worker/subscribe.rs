//! Keeps one queue subscribed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::shared::Shared;
use crate::amqp::{Delivery, Subscription};
use crate::backoff::Backoff;

/// Between two looks for acknowledgements that are held back and must not be.
const LOOK: Duration = Duration::from_secs(1);

/// Subscribes to `queue`, again whenever the subscription ends, until told to stop; then holds the last channel open until
/// all work is done, so that it can still be acknowledged.
pub(crate) async fn subscribe(shared: Arc<Shared>, queue: String, deliveries: mpsc::Sender<Box<Delivery>>) {
    let mut backoff = Backoff::default();
    let consumer = &shared.consumer.name;
    while !shared.stop.is_cancelled() {
        if !shared.budget.has_room() {
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
                let ended = pump(&shared, &mut subscription, &deliveries).await;
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

enum Ended {
    /// We were told to.
    Stop,
    /// Whatever the reason, it is a fault: a stream that ends is never normal.
    Lost { reason: String, lived: bool },
}

async fn pump(
    shared: &Shared,
    subscription: &mut Subscription,
    deliveries: &mpsc::Sender<Box<Delivery>>,
) -> Ended {
    let mut lived = false;
    let channel = Arc::clone(subscription.channel());
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let next = tokio::select! {
            biased;
            () = shared.stop.cancelled() => return Ended::Stop,
            next = subscription.next() => next,
            _ = looks.tick() => {
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
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return Ended::Stop,
            sent = deliveries.send(delivery) => if sent.is_err() {
                return Ended::Lost { reason: "no lane takes deliveries any more".to_owned(), lived };
            },
        }
    }
}
