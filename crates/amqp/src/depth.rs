//! Number of messages in a queue, without consuming from it.

use std::time::Duration;

use lapin::Connection;
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;

use super::connection::{AmqpError, answer};

/// The broker's counts for a queue. Unacknowledged deliveries are not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    pub ready: u32,
    pub subscriptions: u32,
}

/// Queries a queue by a passive declaration; `None` if it does not exist.
pub async fn depth(
    connection: &Connection,
    limit: Duration,
    queue: &str,
) -> Result<Option<Depth>, AmqpError> {
    // A channel per query: the broker closes it if the queue is missing.
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
