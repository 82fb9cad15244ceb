//! Does the broker take messages, and from this user? Asked with a message that finds no queue: it comes back.

use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Connection};
use uuid::Uuid;

use super::connection::{AmqpError, answer};

/// Whether the broker takes messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taking {
    /// It does.
    Takes,
    /// It reads nothing from who publishes, for lack of memory or disk.
    Blocked,
    /// It reads, and this user may not publish there.
    Refuses,
}

/// Publishes empty messages without headers to an exchange, with a routing key that nobody has: to the default exchange, or to one of
/// headers, which looks for some. A broker with an alarm reads nothing from a connection that publishes, and says so on it: nothing else may be done on this one
/// afterwards.
pub(crate) async fn probe(
    connection: &Connection,
    exchange: &str,
    limit: Duration,
) -> Result<Taking, AmqpError> {
    let channel = answer("channel.open", limit, connection.create_channel()).await?;
    answer("confirm.select", limit, channel.confirm_select(ConfirmSelectOptions::default())).await?;
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let nobody = format!("oncely-probe-{}", Uuid::now_v7());
    let published = async {
        // A broker with an alarm deals with the first message, and then reads no more.
        for _ in 0..2 {
            let (exchange, nobody) = (exchange.into(), nobody.as_str().into());
            let published =
                channel.basic_publish(exchange, nobody, options, &[], BasicProperties::default()).await?;
            published.await?;
        }
        Ok(())
    };
    match answer("basic.publish", limit, published).await {
        Ok(()) => Ok(Taking::Takes),
        Err(error) if error.reply_code() == Some(403) => Ok(Taking::Refuses),
        Err(AmqpError::Timeout(..)) if connection.status().blocked() => Ok(Taking::Blocked),
        Err(error) => Err(error),
    }
}
