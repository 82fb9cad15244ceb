//! Messages that are left in queues.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicConsumeOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection, ConnectionProperties};

use super::ledger::{Key, digest};

/// A message that was taken out of a queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Letter {
    /// Tenant and key, as its header and property say.
    pub key: Key,
    /// SHA-256 of its body.
    pub digest: String,
    /// Why it is there: `x-oncely-reason`, or what the broker says.
    pub reason: String,
}

/// Takes all messages out of a queue: what is ready, until nothing comes for `quiet`.
pub async fn drain_queue(url: &str, queue: &str, quiet: Duration) -> anyhow::Result<Vec<Letter>> {
    let connection = Connection::connect(url, ConnectionProperties::default())
        .await
        .context("cannot connect to RabbitMQ")?;
    let channel = connection.create_channel().await?;
    let mut consumer = channel
        .basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default())
        .await?;
    let mut letters = Vec::new();
    while let Ok(Some(delivery)) = tokio::time::timeout(quiet, consumer.next()).await {
        let delivery = delivery?;
        letters.push(letter(&delivery.properties, &delivery.data));
        delivery.ack(BasicAckOptions::default()).await?;
    }
    // The acknowledgements are on their way before this; the answer says that they have arrived.
    connection.close(200, "done".into()).await?;
    Ok(letters)
}

fn letter(properties: &BasicProperties, body: &[u8]) -> Letter {
    let header = |name: &str| {
        properties.headers().as_ref().and_then(|headers| headers.inner().get(name)).map(|value| match value {
            AMQPValue::LongString(text) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
            other => format!("{other:?}"),
        })
    };
    let reason = header("x-oncely-reason")
        .or_else(|| header("x-first-death-reason").map(|reason| format!("broker: {reason}")))
        .unwrap_or_default();
    Letter {
        key: (
            header("x-tenant-id").unwrap_or_default(),
            properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default(),
        ),
        digest: digest(body),
        reason,
    }
}

/// Keys of letters.
#[must_use]
pub(super) fn pairs(letters: &BTreeSet<Letter>) -> HashSet<(&Key, &str)> {
    letters.iter().map(|letter| (&letter.key, letter.digest.as_str())).collect()
}
