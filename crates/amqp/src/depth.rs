//! Number of messages in a queue, without consuming from it.

use std::time::Duration;

use lapin::Connection;
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;

use super::connection::{AmqpError, wait_for_answer};

/// The broker's counts for a queue. Unacknowledged deliveries are not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    pub ready: u32,
    pub subscriptions: u32,
}

/// Queries a queue's counts by a passive declaration, on a channel of its own; `None` if the queue does not exist.
pub async fn query_depth(
    connection: &Connection,
    limit: Duration,
    queue: &str,
) -> Result<Option<Depth>, AmqpError> {
    // A channel per query: the broker closes it if the queue is missing.
    let channel = wait_for_answer("channel.open", limit, connection.create_channel()).await?;
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let request = channel.queue_declare(queue.into(), options, FieldTable::default());
    match wait_for_answer("queue.declare", limit, request).await {
        Ok(queue_state) => {
            let depth =
                Depth { ready: queue_state.message_count(), subscriptions: queue_state.consumer_count() };
            wait_for_answer("channel.close", limit, channel.close(200, "done".into())).await?;
            Ok(Some(depth))
        }
        Err(error) if error.reply_code() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}
