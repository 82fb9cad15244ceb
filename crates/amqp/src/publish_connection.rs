//! Publishes messages of many senders and reports the result of each, with the message at fault.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, PublisherConfirm};
use tokio::sync::Mutex;

use super::connection::{AmqpError, connect, wait_for_answer};
use super::copy::header;
use super::headers::table_size;
use oncely_config::RabbitSettings;

/// A message to publish.
#[derive(Debug)]
pub struct OutgoingMessage<'a> {
    name: String,
    /// Header with its name.
    header: &'static str,
    exchange: &'a str,
    routing_key: &'a str,
    properties: BasicProperties,
    body: &'a [u8],
}

impl<'a> OutgoingMessage<'a> {
    /// Creates a message with a unique name in this header, by which a returned message is identified.
    pub fn new(
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

    /// Returns the message's exchange and routing key.
    fn destination(&self) -> (String, String) {
        (self.exchange.to_owned(), self.routing_key.to_owned())
    }
}

/// Result of publishing a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishResult {
    /// Confirmed, and accepted by a queue.
    Arrived,
    /// No queue accepted it.
    Unroutable,
    /// The broker answered with `basic.nack`.
    Nacked,
    /// Not confirmed within [`PublishLimits`] by a broker that answers: its queue is stalled or has no leader. It may have arrived.
    Unconfirmed,
    /// Not sent: an earlier message with its exchange and routing key was not confirmed. The next one is sent after this time.
    HeldBack(Duration),
    /// The broker closed the channel over it, with this code and text.
    Closed(u16, String),
    /// Its headers don't fit into one frame of this connection.
    HeadersTooLarge,
    /// Not published: the stored message can't be restored.
    Unreadable,
    /// Not published: the stored message is too large to read.
    TooLarge,
}

/// Number of bytes reserved for all properties except the headers, and the frame around them.
const OTHER_PROPERTY_BYTES: usize = 4_096;

/// Maximum number of exchanges that are published to at the same time.
pub const MAX_CONCURRENT_EXCHANGES: usize = 8;

/// Maximum number of open channels, one per exchange.
const MAX_CHANNELS: usize = 64;

/// Time limits of [`PublishConnection::publish`].
#[derive(Clone, Copy, Debug)]
pub struct PublishLimits {
    /// Maximum wait for an answer of the broker.
    pub answer_timeout: Duration,
    /// End of the last wait for confirms.
    pub until: Option<Instant>,
}

impl PublishLimits {
    /// Returns the maximum duration of a wait that begins now.
    fn remaining_wait(&self) -> Duration {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        left.map_or(self.answer_timeout, |left| left.min(self.answer_timeout))
    }
}

/// A connection for publishing, used by one task at a time. A channel serves one exchange, so that a missing exchange closes no other's
/// channel; it is reused once all its confirms are settled.
pub struct PublishConnection {
    settings: RabbitSettings,
    connection: Connection,
    channels: Mutex<HashMap<String, Channel>>,
    /// Exchanges and routing keys of messages that were not confirmed within [`PublishLimits`], with the time of the next try: a silent
    /// queue delays the messages of others once in a while, not with each of its messages.
    silent_until: Mutex<HashMap<(String, String), Instant>>,
}

/// Confirms of the messages of one channel.
struct ChannelConfirms {
    /// Whether each was acknowledged, and whether its confirm carried a returned message; `None` if it is unknown.
    confirms: Vec<Option<(bool, bool)>>,
    /// Names of the returned messages.
    returned: HashSet<String>,
    /// Whether a message was returned without its name.
    is_nameless: bool,
    /// Whether one was not settled within [`PublishLimits`].
    is_silent: bool,
}

/// Results of one channel.
enum ChannelResult {
    /// Result of each message.
    All(Vec<PublishResult>),
    /// The channel was closed; some results are unknown.
    Closed { results: Vec<Option<PublishResult>>, code: u16, text: String },
    /// The connection failed or was silent; some results are unknown.
    Away { results: Vec<Option<PublishResult>>, error: AmqpError },
}

/// Returns the exchanges and routing keys of which no message is settled: a queue that has settled one is slow, not silent.
fn silent_destinations(
    messages: &[&OutgoingMessage<'_>],
    confirms: &[Option<(bool, bool)>],
) -> HashSet<(String, String)> {
    let destinations = |is_settled: bool| -> HashSet<(String, String)> {
        let pairs = messages.iter().zip(confirms).filter(|(_, confirm)| confirm.is_some() == is_settled);
        pairs.map(|(message, _)| message.destination()).collect()
    };
    &destinations(false) - &destinations(true)
}

impl PublishConnection {
    /// Opens a connection.
    pub async fn open(settings: &RabbitSettings, purpose: &str) -> Result<Self, AmqpError> {
        let connection = connect(settings, purpose).await?;
        Ok(Self {
            settings: settings.clone(),
            connection,
            channels: Mutex::default(),
            silent_until: Mutex::default(),
        })
    }

    /// Returns whether the connection is open.
    pub fn is_open(&self) -> bool {
        self.connection.status().connected()
    }

    /// Returns the broker's maximum frame size; 0 means unlimited.
    pub(crate) fn frame_max(&self) -> u32 {
        self.connection.configuration().frame_max()
    }

    /// Returns whether the broker has stopped reading from this connection, for lack of memory or disk.
    pub fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    /// Closes the connection gracefully; waits up to `rabbitmq.timeout` for the answer.
    pub async fn close(self) {
        let request = self.connection.close(200, "done".into());
        if let Err(error) = wait_for_answer("connection.close", self.settings.timeout, request).await {
            tracing::debug!(error = %error, "closing a publishing connection failed");
        }
    }

    /// Publishes messages in any order. The result of one is independent of the others: if a channel is closed over a message, the others
    /// are published again without it. Messages without a result may have arrived or not: after an error of the connection; or, if the
    /// channel of their exchange was closed, after one that was not confirmed within `limits`. Also returns the error of the connection;
    /// `None` without one.
    pub async fn publish(
        &self,
        messages: &[OutgoingMessage<'_>],
        limits: PublishLimits,
    ) -> (Vec<Option<PublishResult>>, Option<AmqpError>) {
        let silent = {
            let mut silent = self.silent_until.lock().await;
            let now = Instant::now();
            silent.retain(|_, retry_at| *retry_at > now);
            silent.clone()
        };
        let held_back = |message: &OutgoingMessage<'_>| {
            // As a rule no queue is silent, and no name is copied.
            let retry_at = if silent.is_empty() { None } else { silent.get(&message.destination()) };
            retry_at.map(|retry_at| retry_at.saturating_duration_since(Instant::now()))
        };
        let mut by_exchange: HashMap<&str, Vec<usize>> = HashMap::new();
        let mut results = vec![None; messages.len()];
        let max_header_bytes = match usize::try_from(self.frame_max()) {
            // No limit.
            Ok(0) | Err(_) => usize::MAX,
            Ok(frame) => frame.saturating_sub(OTHER_PROPERTY_BYTES),
        };
        for (index, message) in messages.iter().enumerate() {
            match message.properties.headers() {
                Some(headers) if table_size(headers) > max_header_bytes => {
                    results[index] = Some(PublishResult::HeadersTooLarge)
                }
                _ => match held_back(message) {
                    Some(left) => results[index] = Some(PublishResult::HeldBack(left)),
                    None => by_exchange.entry(message.exchange).or_default().push(index),
                },
            }
        }
        let groups: Vec<(&str, Vec<usize>)> = by_exchange.into_iter().collect();
        let mut failure = None;
        for group in groups.chunks(MAX_CONCURRENT_EXCHANGES) {
            let mut publishes = Vec::with_capacity(group.len());
            for (exchange, indexes) in group {
                publishes.push(self.publish_to(exchange, messages, indexes, limits));
            }
            let group_results = join_all(publishes).await;
            for ((_, indexes), (channel_results, error)) in group.iter().zip(group_results) {
                for (&index, result) in indexes.iter().zip(channel_results) {
                    results[index] = result;
                }
                failure = failure.or(error);
            }
            if failure.is_some() {
                break;
            }
        }
        (results, failure)
    }

    /// Publishes messages to one exchange. Returns the results in the order of `indexes`, `None` for an unknown one, and the error of the
    /// connection, `None` without one.
    async fn publish_to(
        &self,
        exchange: &str,
        messages: &[OutgoingMessage<'_>],
        indexes: &[usize],
        limits: PublishLimits,
    ) -> (Vec<Option<PublishResult>>, Option<AmqpError>) {
        let mut results = vec![None; indexes.len()];
        // Positions in `indexes`.
        let mut open: Vec<Vec<usize>> = vec![(0..indexes.len()).collect()];
        while let Some(set) = open.pop() {
            let set_messages: Vec<&OutgoingMessage<'_>> =
                set.iter().map(|&index| &messages[indexes[index]]).collect();
            let (set_results, channel_error) =
                match self.publish_on_channel(exchange, &set_messages, limits).await {
                    ChannelResult::All(all) => (all.into_iter().map(Some).collect::<Vec<_>>(), None),
                    ChannelResult::Closed { results, code, text } => (results, Some((code, text))),
                    ChannelResult::Away { results: set_results, error } => {
                        for (&index, result) in set.iter().zip(set_results) {
                            results[index] = result;
                        }
                        return (results, Some(error));
                    }
                };
            let is_silent = set_results.contains(&Some(PublishResult::Unconfirmed));
            for (&index, result) in set.iter().zip(set_results) {
                results[index] = result;
            }
            if is_silent {
                return (results, None);
            }
            let Some((code, text)) = channel_error else { continue };
            let unsettled: Vec<usize> = set.into_iter().filter(|&index| results[index].is_none()).collect();
            let routing_key = |index: usize| messages[indexes[index]].routing_key;
            // A missing exchange concerns all messages; the right to write may depend on the routing key; every other error concerns one
            // message.
            let all_alike = match code {
                404 => true,
                403 => unsettled.windows(2).all(|pair| routing_key(pair[0]) == routing_key(pair[1])),
                _ => unsettled.len() == 1,
            };
            if all_alike {
                for index in unsettled {
                    results[index] = Some(PublishResult::Closed(code, text.clone()));
                }
            } else if code == 403 {
                let mut by_key: HashMap<&str, Vec<usize>> = HashMap::new();
                for index in unsettled {
                    by_key.entry(routing_key(index)).or_default().push(index);
                }
                open.extend(by_key.into_values());
            } else if !unsettled.is_empty() {
                let (first, second) = unsettled.split_at(unsettled.len() / 2);
                open.extend([second.to_vec(), first.to_vec()]);
            }
        }
        (results, None)
    }

    /// Publishes messages on one channel and settles all confirms; then identifies the returned messages by their names: lapin pairs
    /// returns with confirms by order, and under load pairs them wrongly.
    async fn publish_on_channel(
        &self,
        exchange: &str,
        messages: &[&OutgoingMessage<'_>],
        limits: PublishLimits,
    ) -> ChannelResult {
        let no_results = || vec![None; messages.len()];
        let channel = match self.get_or_open_channel(exchange, limits).await {
            Ok(channel) => channel,
            Err(error) => return ChannelResult::Away { results: no_results(), error },
        };
        let (confirms, mut failure) = self.send(&channel, messages, limits).await;
        let ChannelConfirms { confirms, returned, is_nameless, is_silent } =
            self.wait_for_confirms(confirms, messages, limits, &mut failure).await;
        let is_known = failure.is_none() && !is_silent && !is_nameless;
        let destinations = is_silent.then(|| silent_destinations(messages, &confirms));
        let results = messages.iter().zip(confirms).map(|(message, confirm)| match confirm {
            _ if returned.contains(&message.name) => Some(PublishResult::Unroutable),
            Some((false, _)) => Some(PublishResult::Nacked),
            // A return arrives before its confirm, and each confirm takes the oldest pending return. If it took none, this message was not
            // returned; if it took another's, this message's own return may be lost behind a failure.
            Some((true, has_return)) if is_known || !has_return => Some(PublishResult::Arrived),
            _ => None,
        });
        let results: Vec<Option<PublishResult>> = results.collect();
        // A channel caches the state of a quorum queue: one that was opened while the queue had no leader may nack until it is closed.
        if !is_known || results.contains(&Some(PublishResult::Nacked)) {
            self.channels.lock().await.remove(exchange);
        }
        // A queue alone is silent if the broker opens a channel meanwhile.
        if failure.is_none() && is_silent {
            let timeout = AmqpError::Timeout("publisher confirms", limits.answer_timeout);
            let full_limits = PublishLimits { until: None, ..limits };
            failure = match self.is_blocked() {
                true => Some(timeout),
                false => self.get_or_open_channel(exchange, full_limits).await.err().map(|_| timeout),
            };
        }
        let Some(error) = failure else {
            let retry_at = Instant::now() + limits.answer_timeout;
            let destinations = destinations.into_iter().flatten().map(|destination| (destination, retry_at));
            self.silent_until.lock().await.extend(destinations);
            let results = results.into_iter().map(|result| result.unwrap_or(PublishResult::Unconfirmed));
            return ChannelResult::All(results.collect());
        };
        match error.reply_code() {
            // An error of the channel, not of the connection.
            Some(code @ (311 | 313 | 403 | 404 | 405 | 406)) if self.is_open() => {
                ChannelResult::Closed { results, code, text: error.to_string() }
            }
            _ => ChannelResult::Away { results, error },
        }
    }

    /// Sends messages until one fails; returns the confirms of those that were sent, and the error, `None` if all were sent.
    async fn send(
        &self,
        channel: &Channel,
        messages: &[&OutgoingMessage<'_>],
        limits: PublishLimits,
    ) -> (Vec<PublisherConfirm>, Option<AmqpError>) {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let mut confirms = Vec::with_capacity(messages.len());
        for message in messages {
            let properties = message.properties.clone();
            let (exchange, key) = (message.exchange.into(), message.routing_key.into());
            let request = channel.basic_publish(exchange, key, options, message.body, properties);
            match wait_for_answer("basic.publish", limits.remaining_wait(), request).await {
                Ok(confirm) => confirms.push(confirm),
                Err(error) => return (confirms, Some(error)),
            }
        }
        (confirms, None)
    }

    /// Waits for the confirms of messages; `failure` becomes the most specific error. Behind a confirm that is not settled within `limits`,
    /// only those count that are settled already: a queue may be silent while others confirm.
    async fn wait_for_confirms(
        &self,
        mut confirms: Vec<PublisherConfirm>,
        messages: &[&OutgoingMessage<'_>],
        limits: PublishLimits,
        failure: &mut Option<AmqpError>,
    ) -> ChannelConfirms {
        // All messages have the same header.
        let name_header = messages.first().map_or("", |message| message.header);
        let mut outcomes = Vec::with_capacity(messages.len());
        let mut returned = HashSet::new();
        let mut is_nameless = false;
        let mut read_confirmation = |confirmation: Confirmation| {
            let is_ack = confirmation.is_ack();
            let message = confirmation.take_message();
            let has_return = message.is_some();
            if let Some(message) = message {
                match header(message.delivery.properties.headers().as_ref(), name_header) {
                    Some(name) => drop(returned.insert(name.to_owned())),
                    None => is_nameless = true,
                }
            }
            (is_ack, has_return)
        };
        let mut is_silent = matches!(failure, Some(AmqpError::Timeout(..)));
        for confirm in &mut confirms {
            let limit = if is_silent { Duration::ZERO } else { limits.remaining_wait() };
            match wait_for_answer("publisher confirms", limit, confirm).await {
                Ok(confirmation) => outcomes.push(Some(read_confirmation(confirmation))),
                Err(AmqpError::Timeout(..)) => {
                    outcomes.push(None);
                    is_silent = true;
                }
                Err(error) => {
                    outcomes.push(None);
                    // The code is in the errors of confirms, not in that of a publish on a closed channel.
                    if failure.as_ref().is_none_or(|failure| failure.reply_code().is_none()) {
                        *failure = Some(error);
                    }
                }
            }
        }
        // One that has been settled since took the return of one that was settled above, perhaps.
        for (confirm, _) in confirms.iter_mut().zip(&outcomes).filter(|(_, outcome)| outcome.is_none()) {
            if let Some(Ok(confirmation)) = confirm.now_or_never() {
                read_confirmation(confirmation);
            }
        }
        outcomes.resize(messages.len(), None);
        ChannelConfirms { confirms: outcomes, returned, is_nameless, is_silent }
    }

    /// Returns the open channel of an exchange, or opens one. Several are opened side by side.
    async fn get_or_open_channel(&self, exchange: &str, limits: PublishLimits) -> Result<Channel, AmqpError> {
        let open_channel = self.channels.lock().await.get(exchange).cloned();
        if let Some(channel) = open_channel.filter(|channel| channel.status().connected()) {
            return Ok(channel);
        }
        let channel =
            wait_for_answer("channel.open", limits.remaining_wait(), self.connection.create_channel())
                .await?;
        let request = channel.confirm_select(ConfirmSelectOptions::default());
        wait_for_answer("confirm.select", limits.remaining_wait(), request).await?;
        let mut channels = self.channels.lock().await;
        if channels.len() >= MAX_CHANNELS {
            // Channels in use stay open until they are settled: a handle keeps its channel.
            channels.clear();
        }
        channels.insert(exchange.to_owned(), channel.clone());
        Ok(channel)
    }
}
