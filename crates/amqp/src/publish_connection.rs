//! Publishes messages of many senders and reports the result of each, with the message at fault.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, PublisherConfirm};
use tokio::sync::Mutex;

use super::connection::{AmqpError, answer, connect};
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

    /// Returns the exchange and the routing key.
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
    /// Not confirmed in time by a broker that answers: its queue is stalled or has no leader. It may have arrived.
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

/// Size reserved for all properties except the headers, and the frame around them.
const OTHER_PROPERTIES: usize = 4_096;

/// Limit of exchanges published to at the same time.
pub const EXCHANGES_AT_ONCE: usize = 8;

/// Limit of open channels, one per exchange.
const CHANNELS: usize = 64;

/// Time limits of [`PublishConnection::publish`].
#[derive(Clone, Copy, Debug)]
pub struct PublishLimits {
    /// Longest wait for an answer of the broker.
    pub answer: Duration,
    /// Time at which the last wait for confirms ends.
    pub until: Option<Instant>,
}

impl PublishLimits {
    /// Returns the longest wait that begins now.
    fn wait(&self) -> Duration {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        left.map_or(self.answer, |left| left.min(self.answer))
    }
}

/// A connection for publishing, used by one task at a time. A channel serves one exchange, so that a missing exchange closes no other's
/// channel; it is reused once all its confirms are settled.
pub struct PublishConnection {
    settings: RabbitSettings,
    connection: Connection,
    channels: Mutex<HashMap<String, Channel>>,
    /// Exchanges and routing keys of messages that were not confirmed in time, with the time of the next try: a silent queue delays the
    /// messages of others once in a while, not with each of its messages.
    silent: Mutex<HashMap<(String, String), Instant>>,
}

/// Confirms of the messages of one channel.
struct ChannelConfirms {
    /// Whether each was acknowledged, and whether its confirm carried a returned message; `None` if it is unknown.
    confirms: Vec<Option<(bool, bool)>>,
    /// Names of the returned messages.
    returned: HashSet<String>,
    /// Whether a message was returned without its name.
    is_nameless: bool,
    /// Whether one was not settled in time.
    is_silent: bool,
}

/// Results of one channel.
enum ChannelResult {
    /// Result of each message.
    All(Vec<PublishResult>),
    /// The channel was closed; some results are unknown.
    Closed { known: Vec<Option<PublishResult>>, code: u16, text: String },
    /// The connection failed or was silent; some results are unknown.
    Away { known: Vec<Option<PublishResult>>, error: AmqpError },
}

/// Returns the exchanges and routing keys of which no message is settled: a queue that has settled one is slow, not silent.
fn silent_destinations(
    messages: &[&OutgoingMessage<'_>],
    confirms: &[Option<(bool, bool)>],
) -> HashSet<(String, String)> {
    let of = |is_settled: bool| -> HashSet<(String, String)> {
        let those = messages.iter().zip(confirms).filter(|(_, settled)| settled.is_some() == is_settled);
        those.map(|(message, _)| message.destination()).collect()
    };
    &of(false) - &of(true)
}

impl PublishConnection {
    /// Opens a connection.
    pub async fn open(settings: &RabbitSettings, purpose: &str) -> Result<Self, AmqpError> {
        let connection = connect(settings, purpose).await?;
        Ok(Self {
            settings: settings.clone(),
            connection,
            channels: Mutex::default(),
            silent: Mutex::default(),
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

    /// Closes the connection gracefully.
    pub async fn close(self) {
        let closed = self.connection.close(200, "done".into());
        if let Err(error) = answer("connection.close", self.settings.timeout, closed).await {
            tracing::debug!(error = %error, "closing a publishing connection failed");
        }
    }

    /// Publishes messages in any order. The result of one is independent of the others: if a channel is closed over a message, the rest is
    /// published again without it. Messages without a result may have arrived or not: after an error of the connection; or, if the channel of
    /// their exchange was closed, after one that was not confirmed in time.
    pub async fn publish(
        &self,
        messages: &[OutgoingMessage<'_>],
        limits: PublishLimits,
    ) -> (Vec<Option<PublishResult>>, Option<AmqpError>) {
        let silent = {
            let mut silent = self.silent.lock().await;
            let now = Instant::now();
            silent.retain(|_, again| *again > now);
            silent.clone()
        };
        let held_back = |message: &OutgoingMessage<'_>| {
            // As a rule no queue is silent, and no name is copied.
            let again = if silent.is_empty() { None } else { silent.get(&message.destination()) };
            again.map(|again| again.saturating_duration_since(Instant::now()))
        };
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
                _ => match held_back(message) {
                    Some(left) => results[index] = Some(PublishResult::HeldBack(left)),
                    None => by_exchange.entry(message.exchange).or_default().push(index),
                },
            }
        }
        let groups: Vec<(&str, Vec<usize>)> = by_exchange.into_iter().collect();
        let mut failed = None;
        for some in groups.chunks(EXCHANGES_AT_ONCE) {
            let mut going = Vec::with_capacity(some.len());
            for (exchange, indexes) in some {
                going.push(self.publish_to(exchange, messages, indexes, limits));
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

    /// Publishes messages to one exchange; returns the results in the order of `indexes`.
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
            let some: Vec<&OutgoingMessage<'_>> = set.iter().map(|&at| &messages[indexes[at]]).collect();
            let (known, closed) = match self.publish_on_channel(exchange, &some, limits).await {
                ChannelResult::All(all) => (all.into_iter().map(Some).collect::<Vec<_>>(), None),
                ChannelResult::Closed { known, code, text } => (known, Some((code, text))),
                ChannelResult::Away { known, error } => {
                    for (&at, result) in set.iter().zip(known) {
                        results[at] = result;
                    }
                    return (results, Some(error));
                }
            };
            let is_silent = known.contains(&Some(PublishResult::Unconfirmed));
            for (&at, result) in set.iter().zip(known) {
                results[at] = result;
            }
            if is_silent {
                return (results, None);
            }
            let Some((code, text)) = closed else { continue };
            let left: Vec<usize> = set.into_iter().filter(|&at| results[at].is_none()).collect();
            let routing_key = |at: usize| messages[indexes[at]].routing_key;
            // A missing exchange concerns all messages; the right to write may depend on the routing key; every other error concerns one
            // message.
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

    /// Publishes messages on one channel and settles all confirms; then identifies the returned messages by their names: lapin pairs
    /// returns with confirms by order, and under load pairs them wrongly.
    async fn publish_on_channel(
        &self,
        exchange: &str,
        messages: &[&OutgoingMessage<'_>],
        limits: PublishLimits,
    ) -> ChannelResult {
        let nothing = || vec![None; messages.len()];
        let channel = match self.channel(exchange, limits).await {
            Ok(channel) => channel,
            Err(error) => return ChannelResult::Away { known: nothing(), error },
        };
        let (confirms, mut failed) = self.send(&channel, messages, limits).await;
        let ChannelConfirms { confirms, returned, is_nameless, is_silent } =
            self.settle(confirms, messages, limits, &mut failed).await;
        let is_known = failed.is_none() && !is_silent && !is_nameless;
        let silent = is_silent.then(|| silent_destinations(messages, &confirms));
        let known = messages.iter().zip(confirms).map(|(message, settled)| match settled {
            _ if returned.contains(&message.name) => Some(PublishResult::Unroutable),
            Some((false, _)) => Some(PublishResult::Nacked),
            // A return arrives before its confirm, and each confirm takes the oldest pending return. If it took none, this message was not
            // returned; if it took another's, this message's own return may be lost behind a failure.
            Some((true, carried)) if is_known || !carried => Some(PublishResult::Arrived),
            _ => None,
        });
        let known: Vec<Option<PublishResult>> = known.collect();
        // A channel caches the state of a quorum queue: one that was opened while the queue had no leader may nack until it is closed.
        if !is_known || known.contains(&Some(PublishResult::Nacked)) {
            self.channels.lock().await.remove(exchange);
        }
        // A queue alone is silent if the broker opens a channel meanwhile.
        if failed.is_none() && is_silent {
            let timeout = AmqpError::Timeout("publisher confirms", limits.answer);
            let whole = PublishLimits { until: None, ..limits };
            failed = match self.is_blocked() {
                true => Some(timeout),
                false => self.channel(exchange, whole).await.err().map(|_| timeout),
            };
        }
        let Some(error) = failed else {
            let again = Instant::now() + limits.answer;
            let silent = silent.into_iter().flatten().map(|destination| (destination, again));
            self.silent.lock().await.extend(silent);
            let known = known.into_iter().map(|result| result.unwrap_or(PublishResult::Unconfirmed));
            return ChannelResult::All(known.collect());
        };
        match error.reply_code() {
            // An error of the channel, not of the connection.
            Some(code @ (311 | 313 | 403 | 404 | 405 | 406)) if self.is_open() => {
                ChannelResult::Closed { known, code, text: error.to_string() }
            }
            _ => ChannelResult::Away { known, error },
        }
    }

    /// Sends messages until one fails.
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
            let published = channel.basic_publish(exchange, key, options, message.body, properties);
            match answer("basic.publish", limits.wait(), published).await {
                Ok(confirm) => confirms.push(confirm),
                Err(error) => return (confirms, Some(error)),
            }
        }
        (confirms, None)
    }

    /// Awaits the confirms of messages; `failed` becomes the error that tells most. Behind one that is not settled in time, only those count
    /// that are settled already: a queue may be silent while others confirm.
    async fn settle(
        &self,
        mut confirms: Vec<PublisherConfirm>,
        messages: &[&OutgoingMessage<'_>],
        limits: PublishLimits,
        failed: &mut Option<AmqpError>,
    ) -> ChannelConfirms {
        // All messages have the same header.
        let name_header = messages.first().map_or("", |message| message.header);
        let mut settled = Vec::with_capacity(messages.len());
        let mut returned = HashSet::new();
        let mut is_nameless = false;
        let mut note = |confirmation: Confirmation| {
            let is_ack = confirmation.is_ack();
            let message = confirmation.take_message();
            let carried = message.is_some();
            if let Some(message) = message {
                match header(message.delivery.properties.headers().as_ref(), name_header) {
                    Some(name) => drop(returned.insert(name.to_owned())),
                    None => is_nameless = true,
                }
            }
            (is_ack, carried)
        };
        let mut is_silent = matches!(failed, Some(AmqpError::Timeout(..)));
        for confirm in &mut confirms {
            let limit = if is_silent { Duration::ZERO } else { limits.wait() };
            match answer("publisher confirms", limit, confirm).await {
                Ok(confirmation) => settled.push(Some(note(confirmation))),
                Err(AmqpError::Timeout(..)) => {
                    settled.push(None);
                    is_silent = true;
                }
                Err(error) => {
                    settled.push(None);
                    // The code is in the errors of confirms, not in that of a publish on a closed channel.
                    if failed.as_ref().is_none_or(|failed| failed.reply_code().is_none()) {
                        *failed = Some(error);
                    }
                }
            }
        }
        // One that has been settled since took the return of one that was settled above, perhaps.
        for (confirm, _) in confirms.iter_mut().zip(&settled).filter(|(_, settled)| settled.is_none()) {
            if let Some(Ok(confirmation)) = confirm.now_or_never() {
                note(confirmation);
            }
        }
        settled.resize(messages.len(), None);
        ChannelConfirms { confirms: settled, returned, is_nameless, is_silent }
    }

    /// Returns the channel of an exchange. Several are opened side by side.
    async fn channel(&self, exchange: &str, limits: PublishLimits) -> Result<Channel, AmqpError> {
        let known = self.channels.lock().await.get(exchange).cloned();
        if let Some(channel) = known.filter(|channel| channel.status().connected()) {
            return Ok(channel);
        }
        let channel = answer("channel.open", limits.wait(), self.connection.create_channel()).await?;
        let selected = channel.confirm_select(ConfirmSelectOptions::default());
        answer("confirm.select", limits.wait(), selected).await?;
        let mut channels = self.channels.lock().await;
        if channels.len() >= CHANNELS {
            // Channels in use stay open until they are settled: a handle keeps its channel.
            channels.clear();
        }
        channels.insert(exchange.to_owned(), channel.clone());
        Ok(channel)
    }
}
