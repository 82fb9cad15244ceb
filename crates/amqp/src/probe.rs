//! Tests whether the broker accepts messages from this user, with an unroutable message that is returned.

use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Connection};
use uuid::Uuid;

use super::connection::{AmqpError, wait_for_answer};

/// Whether the broker accepts messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishAcceptance {
    Takes,
    /// The broker reads nothing from publishers, for lack of memory or disk.
    Blocked,
    /// This user has no right to publish there.
    Refuses,
}

/// Tests whether the broker accepts messages: publishes empty ones without headers and with an unused routing key to an exchange: the
/// default one, or one of type headers, which needs headers to route. A broker with an alarm stops reading from a connection that
/// publishes, and notifies it: this connection must not be used afterwards.
pub async fn probe(
    connection: &Connection,
    exchange: &str,
    limit: Duration,
) -> Result<PublishAcceptance, AmqpError> {
    let channel = wait_for_answer("channel.open", limit, connection.create_channel()).await?;
    wait_for_answer("confirm.select", limit, channel.confirm_select(ConfirmSelectOptions::default())).await?;
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let unused_key = format!("oncely-probe-{}", Uuid::now_v7());
    let publish = async {
        // A broker with an alarm processes the first message, and then stops reading.
        for _ in 0..2 {
            let (exchange, unused_key) = (exchange.into(), unused_key.as_str().into());
            let confirm =
                channel.basic_publish(exchange, unused_key, options, &[], BasicProperties::default()).await?;
            confirm.await?;
        }
        Ok(())
    };
    match wait_for_answer("basic.publish", limit, publish).await {
        Ok(()) => Ok(PublishAcceptance::Takes),
        Err(error) if error.reply_code() == Some(403) => Ok(PublishAcceptance::Refuses),
        Err(AmqpError::Timeout(..)) if connection.status().blocked() => Ok(PublishAcceptance::Blocked),
        Err(error) => Err(error),
    }
}
