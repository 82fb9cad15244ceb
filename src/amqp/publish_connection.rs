//! Publishing many messages of strangers: what became of each, and whose fault it was.

use std::collections::{HashMap, HashSet};

use futures::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection};
use tokio::sync::Mutex;

use super::connection::{AmqpError, answer, connect};
use super::copy::header;
use super::headers::table_size;
use crate::config::RabbitSettings;

/// A message to publish.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    name: String,
    /// The header that holds its name.
    header: &'static str,
    exchange: &'a str,
    routing_key: &'a str,
    properties: BasicProperties,
    body: &'a [u8],
}

impl<'a> Outgoing<'a> {
    /// A message with a unique name, which travels in this header, so that a returned message is told from its neighbours.
    pub(crate) fn new(
        header: &'static str,
        name: String,
        exchange: &'a str,
        routing_key: &'a str,
        properties: BasicProperties,
        mut headers: FieldTable,
        body: &'a [u8],
    ) -> Self {
        headers.insert(header.into(), AMQPValue::LongString(name.as_str().into()));
        Self { name, header, exchange, routing_key, properties: properties.with_headers(headers), body }
    }
}

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PublishResult {
    /// Confirmed, and taken by a queue.
    Arrived,
    /// No queue took it.
    Unroutable,
    /// The broker answered with `basic.nack`.
    Nacked,
    /// The broker closed the channel over it, with this code and text.
    Closed(u16, String),
    /// Its headers don't fit into one frame of this connection.
    HeadersTooLarge,
    /// Nothing was published: no message can be made of what is stored.
    Unreadable,
    /// Nothing was published: what is stored is too large to be read.
    TooLarge,
}

/// All properties other than the headers, with the frame around them.
const OTHER_PROPERTIES: usize = 4_096;

/// Exchanges published to at the same time.
const TOGETHER: usize = 8;

/// Channels kept open, one per exchange.
const CHANNELS: usize = 64;

/// A connection for publishing, used by one task at a time. A channel serves one exchange, so that an exchange that is missing
/// closes no other's channel; it is used again once all its confirms are settled.
pub(crate) struct PublishConnection {
    settings: RabbitSettings,
    connection: Connection,
    channels: Mutex<HashMap<String, Channel>>,
}

/// What one channel said.
enum Said {
    /// Of each message.
    All(Vec<PublishResult>),
    /// The channel was closed; of some messages nothing is known.
    Closed { known: Vec<Option<PublishResult>>, code: u16, text: String },
    /// The connection failed or was silent; of some messages nothing is known.
    Away { known: Vec<Option<PublishResult>>, error: AmqpError },
}

impl PublishConnection {
    /// Opens a connection.
    pub(crate) async fn open(settings: &RabbitSettings, purpose: &str) -> Result<Self, AmqpError> {
        let connection = connect(settings, purpose).await?;
        Ok(Self { settings: settings.clone(), connection, channels: Mutex::default() })
    }

    /// Is the connection there?
    pub(crate) fn is_open(&self) -> bool {
        self.connection.status().connected()
    }

    /// Largest frame that the broker takes; 0 means any.
    pub(crate) fn frame_max(&self) -> u32 {
        self.connection.configuration().frame_max()
    }

    /// Does the broker read nothing from us, for lack of memory or disk?
    pub(crate) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    /// Says good-bye to the broker.
    pub(crate) async fn close(self) {
        let closed = self.connection.close(200, "done".into());
        if let Err(error) = answer("connection.close", self.settings.timeout, closed).await {
            tracing::debug!(error = %error, "closing a publishing connection failed");
        }
    }

    /// Publishes messages whose order among each other does not matter. What is said of one has nothing to do with the others:
    /// where a channel is closed over a message, the rest is published again without it. With an error of the connection,
    /// nothing is known of the messages without a result: they may have arrived or not.
    pub(crate) async fn publish(
        &self,
        messages: &[Outgoing<'_>],
    ) -> (Vec<Option<PublishResult>>, Option<AmqpError>) {
        let mut by_exchange: HashMap<&str, Vec<usize>> = HashMap::new();
        let mut results = vec![None; messages.len()];
        let room = match usize::try_from(self.frame_max()) {
            // No limit.
            Ok(0) | Err(_) => usize::MAX,
            Ok(frame) => frame.saturating_sub(OTHER_PROPERTIES),
        };
        for (index, message) in messages.iter().enumerate() {
            match message.properties.headers() {
                Some(headers) if table_size(headers) > room => {
                    results[index] = Some(PublishResult::HeadersTooLarge)
                }
                _ => by_exchange.entry(message.exchange).or_default().push(index),
            }
        }
        let groups: Vec<(&str, Vec<usize>)> = by_exchange.into_iter().collect();
        let mut failed = None;
        for some in groups.chunks(TOGETHER) {
            let mut going = Vec::with_capacity(some.len());
            for (exchange, indexes) in some {
                going.push(self.publish_to(exchange, messages, indexes));
            }
            let said = join_all(going).await;
            for ((_, indexes), (known, error)) in some.iter().zip(said) {
                for (&index, result) in indexes.iter().zip(known) {
                    results[index] = result;
                }
                failed = failed.or(error);
            }
            if failed.is_some() {
                break;
            }
        }
        (results, failed)
    }

    /// Publishes messages to one exchange; the results in the order of `indexes`.
    async fn publish_to(
        &self,
        exchange: &str,
        messages: &[Outgoing<'_>],
        indexes: &[usize],
    ) -> (Vec<Option<PublishResult>>, Option<AmqpError>) {
        let mut results = vec![None; indexes.len()];
        // Positions in `indexes`.
        let mut open: Vec<Vec<usize>> = vec![(0..indexes.len()).collect()];
        while let Some(set) = open.pop() {
            let some: Vec<&Outgoing<'_>> = set.iter().map(|&at| &messages[indexes[at]]).collect();
            let (known, closed) = match self.once(exchange, &some).await {
                Said::All(all) => (all.into_iter().map(Some).collect(), None),
                Said::Closed { known, code, text } => (known, Some((code, text))),
                Said::Away { known, error } => {
                    for (&at, result) in set.iter().zip(known) {
                        results[at] = result;
                    }
                    return (results, Some(error));
                }
            };
            for (&at, result) in set.iter().zip(known) {
                results[at] = result;
            }
            let Some((code, text)) = closed else { continue };
            let left: Vec<usize> = set.into_iter().filter(|&at| results[at].is_none()).collect();
            let routing_key = |at: usize| messages[indexes[at]].routing_key;
            // A missing exchange is missing for all; the right to write may depend on the routing key; everything else is a
            // matter of one message.
            let all_alike = match code {
                404 => true,
                403 => left.windows(2).all(|pair| routing_key(pair[0]) == routing_key(pair[1])),
                _ => left.len() == 1,
            };
            if all_alike {
                for at in left {
                    results[at] = Some(PublishResult::Closed(code, text.clone()));
                }
            } else if code == 403 {
                let mut by_key: HashMap<&str, Vec<usize>> = HashMap::new();
                for at in left {
                    by_key.entry(routing_key(at)).or_default().push(at);
                }
                open.extend(by_key.into_values());
            } else if !left.is_empty() {
                let (first, second) = left.split_at(left.len() / 2);
                open.extend([second.to_vec(), first.to_vec()]);
            }
        }
        (results, None)
    }

    /// Publishes messages on one channel and settles all confirms; only then looks which were returned, by their names: lapin
    /// pairs returns with confirms by order, and under load pairs them wrongly.
    async fn once(&self, exchange: &str, messages: &[&Outgoing<'_>]) -> Said {
        let limit = self.settings.timeout;
        let nothing = || vec![None; messages.len()];
        let channel = match self.channel(exchange).await {
            Ok(channel) => channel,
            Err(error) => return Said::Away { known: nothing(), error },
        };
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        // The same for all.
        let name_header = messages.first().map_or("", |message| message.header);
        let mut confirms = Vec::with_capacity(messages.len());
        let mut failed: Option<AmqpError> = None;
        for message in messages {
            let properties = message.properties.clone();
            let (exchange, key) = (message.exchange.into(), message.routing_key.into());
            let published = channel.basic_publish(exchange, key, options, message.body, properties);
            match answer("basic.publish", limit, published).await {
                Ok(confirm) => confirms.push(confirm),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        let mut settled = Vec::with_capacity(messages.len());
        let mut returned = HashSet::new();
        let mut silent = matches!(failed, Some(AmqpError::Timeout(..)));
        for confirm in confirms {
            if silent {
                break;
            }
            match answer("publisher confirms", limit, confirm).await {
                Ok(confirmation) => {
                    let is_ack = confirmation.is_ack();
                    let message = confirmation.take_message();
                    settled.push(Some((is_ack, message.is_some())));
                    if let Some(message) = message
                        && let Some(name) =
                            header(message.delivery.properties.headers().as_ref(), name_header)
                    {
                        returned.insert(name.to_owned());
                    }
                }
                Err(error) => {
                    settled.push(None);
                    silent = matches!(error, AmqpError::Timeout(..));
                    // The code is in the confirms' errors, not in that of a publish on a closed channel.
                    if failed.as_ref().is_none_or(|failed| failed.reply_code().is_none()) {
                        failed = Some(error);
                    }
                }
            }
        }
        settled.resize(messages.len(), None);
        let known = messages.iter().zip(settled).map(|(message, settled)| match settled {
            _ if returned.contains(&message.name) => Some(PublishResult::Unroutable),
            Some((false, _)) => Some(PublishResult::Nacked),
            // A return comes before its confirm, and each confirm takes the oldest return that waits. With none left, this
            // message's own would have been seen; with another's, its own may be lost behind a failure.
            Some((true, carried)) if failed.is_none() || !carried => Some(PublishResult::Arrived),
            _ => None,
        });
        let known: Vec<Option<PublishResult>> = known.collect();
        let Some(error) = failed else {
            // A channel keeps what it knows of a quorum queue: one that was opened while the queue had no leader may nack as long as it lives.
            if known.contains(&Some(PublishResult::Nacked)) {
                self.channels.lock().await.remove(exchange);
            }
            return Said::All(known.into_iter().flatten().collect());
        };
        self.channels.lock().await.remove(exchange);
        match error.reply_code() {
            // Of the channel, not of the connection.
            Some(code @ (311 | 313 | 403 | 404 | 405 | 406)) if self.is_open() => {
                Said::Closed { known, code, text: error.to_string() }
            }
            _ => Said::Away { known, error },
        }
    }

    async fn channel(&self, exchange: &str) -> Result<Channel, AmqpError> {
        let limit = self.settings.timeout;
        let mut channels = self.channels.lock().await;
        if let Some(channel) = channels.get(exchange).filter(|channel| channel.status().connected()) {
            return Ok(channel.clone());
        }
        if channels.len() >= CHANNELS {
            // Those in use live on until they are settled: a handle keeps its channel.
            channels.clear();
        }
        let channel = answer("channel.open", limit, self.connection.create_channel()).await?;
        answer("confirm.select", limit, channel.confirm_select(ConfirmSelectOptions::default())).await?;
        channels.insert(exchange.to_owned(), channel.clone());
        Ok(channel)
    }
}
