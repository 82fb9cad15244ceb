//! How full a queue is, without looking into it.

use std::time::Duration;

use lapin::Connection;
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;

use super::connection::{AmqpError, answer};

/// What the broker says of a queue to whoever may declare it. Deliveries that are not acknowledged are not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depth {
    /// Messages ready.
    pub(crate) ready: u32,
    /// Subscriptions.
    pub(crate) subscriptions: u32,
}

/// Asks for a queue by declaring it passively; `None` where it does not exist.
pub(crate) async fn depth(
    connection: &Connection,
    limit: Duration,
    queue: &str,
) -> Result<Option<Depth>, AmqpError> {
    // A channel for each: the broker closes it when the queue is missing.
    let channel = answer("channel.open", limit, connection.create_channel()).await?;
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let declared = channel.queue_declare(queue.into(), options, FieldTable::default());
    match answer("queue.declare", limit, declared).await {
        Ok(found) => {
            let depth = Depth { ready: found.message_count(), subscriptions: found.consumer_count() };
            answer("channel.close", limit, channel.close(200, "done".into())).await?;
            Ok(Some(depth))
        }
        Err(error) if error.reply_code() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}
