//! The queues and exchanges of a consumer's queue.
//!
//! ```text
//!   <queue>                 work; dead-letters to <queue>.dlx when the broker itself gives a message up
//!   <queue>.dlx    fanout   → <queue>.dead
//!   <queue>.retry  headers  → <queue>.retry.<delay>, by the header oncely-rung   (TTL; dead-letters to <queue>.return)
//!   <queue>.return fanout   → <queue>; where that binding is gone: alternate exchange <queue>.dlx
//! ```
//! Fanout and headers exchanges ignore the routing key, so a copy keeps its own through every stage.

use std::time::Duration;

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ExchangeKind};

use super::applied::{AppliedTopology, ExistingObject, RefusedObject};
use super::connection::{AmqpError, wait_for_answer};
use oncely_config::{ConsumerSettings, OBSERVER_SUFFIX, QueueArgument, QueueBinding, QueueType};
use oncely_core::own_headers;
use oncely_core::retry::rung_name;

/// The queues and exchanges of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    queue: String,
    queue_type: QueueType,
    delays: Vec<Duration>,
    /// Whether another owner declares the work queue.
    is_foreign: bool,
    arguments: Vec<(String, QueueArgument)>,
    bindings: Vec<QueueBinding>,
    /// The observed queue, if the consumer only observes.
    observed_queue: Option<String>,
}

/// Existing and missing objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologyReport {
    /// Queues that do not exist.
    pub missing_queues: Vec<String>,
    /// Exchanges that do not exist.
    pub missing_exchanges: Vec<String>,
    /// Missing exchanges to which the configuration binds the queue.
    pub missing_sources: Vec<String>,
    /// Queues that differ from [`Topology::apply`]'s declaration, or that another connection uses exclusively.
    pub unfit_queues: Vec<String>,
    /// Queues with unknown arguments: this user may not declare them.
    pub unseen_queues: Vec<String>,
    /// Messages ready in the work queue, if it exists.
    pub ready: Option<u32>,
    /// Messages ready in the dead-letter queue, if it exists.
    pub dead: Option<u32>,
    /// Consumers of the work queue, if it exists.
    pub subscriptions: Option<u32>,
}

impl Topology {
    /// Returns a topology for each queue of a consumer.
    #[must_use]
    pub fn for_consumer(consumer: &ConsumerSettings) -> Vec<Self> {
        let mut delays = consumer.retry.delays.clone();
        delays.dedup();
        consumer
            .queues
            .iter()
            .map(|queue| Self {
                queue: queue.clone(),
                queue_type: consumer.queue_type,
                delays: delays.clone(),
                is_foreign: !consumer.declare && !consumer.is_observer(),
                arguments: consumer.queue_arguments.clone(),
                bindings: consumer.bindings.clone(),
                observed_queue: queue
                    .strip_suffix(OBSERVER_SUFFIX)
                    .filter(|_| consumer.is_observer())
                    .map(str::to_owned),
            })
            .collect()
    }

    /// Returns whether the consumer only observes. An observer has no further queues or exchanges.
    #[must_use]
    pub fn is_observer(&self) -> bool {
        self.observed_queue.is_some()
    }

    /// Returns the observed queue, of which an observer needs a copy of each message; `None` for a consumer that does not only observe.
    #[must_use]
    pub fn observed_queue(&self) -> Option<&str> {
        self.observed_queue.as_deref()
    }

    /// Returns the configured bindings.
    #[must_use]
    pub fn bindings(&self) -> &[QueueBinding] {
        &self.bindings
    }

    /// Replaces the configured bindings.
    #[must_use]
    pub fn with_bindings(mut self, bindings: Vec<QueueBinding>) -> Self {
        self.bindings = bindings;
        self
    }

    /// Returns the work queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// Returns whether the queue's messages wait in retry queues between attempts.
    #[must_use]
    pub fn has_retries(&self) -> bool {
        !self.delays.is_empty()
    }

    /// Returns the name of the exchange for dead letters.
    #[must_use]
    pub fn dead_letter_exchange(queue: &str) -> String {
        format!("{queue}.dlx")
    }

    /// Returns the name of the queue of dead letters.
    #[must_use]
    pub fn dead_letter_queue(queue: &str) -> String {
        format!("{queue}.dead")
    }

    /// Returns the name of the exchange for copies that come back later.
    #[must_use]
    pub fn retry_exchange(queue: &str) -> String {
        format!("{queue}.retry")
    }

    /// Returns the name of the queue in which copies wait for `delay`.
    #[must_use]
    pub fn retry_queue(queue: &str, delay: Duration) -> String {
        format!("{queue}.retry.{}", rung_name(delay))
    }

    /// Returns the name of the exchange that routes only to the queue: for copies that come back later, and for requeued dead letters.
    #[must_use]
    pub fn return_exchange(queue: &str) -> String {
        format!("{queue}.return")
    }

    /// Lists the exchanges to declare, with their kinds: dead-letter, return and, if there are delays, retry; none for an observer.
    fn list_exchanges(&self) -> Vec<(String, ExchangeKind)> {
        // An observer gives nothing up and publishes nothing.
        if self.observed_queue.is_some() {
            return Vec::new();
        }
        let mut exchanges = vec![
            (Self::dead_letter_exchange(&self.queue), ExchangeKind::Fanout),
            // Also without retries: requeued dead letters use it.
            (Self::return_exchange(&self.queue), ExchangeKind::Fanout),
        ];
        if !self.delays.is_empty() {
            exchanges.push((Self::retry_exchange(&self.queue), ExchangeKind::Headers));
        }
        exchanges
    }

    /// Lists the queues to declare, with their arguments: work, dead-letter and one retry queue for each delay; for an observer its queue.
    fn list_queues(&self) -> Vec<(String, FieldTable)> {
        let queue = &self.queue;
        if self.observed_queue.is_some() {
            return vec![(queue.clone(), build_observer_queue_arguments())];
        }
        // Messages that the broker gives up itself (delivery limit, length, TTL) must go to the same dead-letter queue.
        let mut work_arguments = self.build_dead_lettering_arguments(&Self::dead_letter_exchange(queue));
        let mut dead_letter_arguments = self.build_type_arguments();
        match self.queue_type {
            QueueType::Quorum => {
                work_arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(DELIVERY_LIMIT));
                dead_letter_arguments
                    .insert("x-delivery-limit".into(), AMQPValue::LongLongInt(DEAD_LETTER_DELIVERY_LIMIT));
            }
            QueueType::Classic => {}
        }
        for (name, value) in &self.arguments {
            let value = match value {
                QueueArgument::Text(value) => to_text_value(value),
                QueueArgument::Integer(value) => AMQPValue::LongLongInt(*value),
                QueueArgument::Boolean(value) => AMQPValue::Boolean(*value),
            };
            work_arguments.insert(name.as_str().into(), value);
        }
        let mut queues =
            vec![(queue.clone(), work_arguments), (Self::dead_letter_queue(queue), dead_letter_arguments)];
        for delay in &self.delays {
            let mut retry_arguments = self.build_dead_lettering_arguments(&Self::return_exchange(queue));
            let ttl = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
            retry_arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(ttl));
            queues.push((Self::retry_queue(queue, *delay), retry_arguments));
        }
        queues
    }

    /// Builds all declarations, in a valid order.
    fn build_declarations(&self) -> Vec<Declaration> {
        let queue = &self.queue;
        let dead_letter_exchange = to_text_value(&Self::dead_letter_exchange(queue));
        let return_exchange = Self::return_exchange(queue);
        let mut declarations = Vec::new();
        for (name, kind) in self.list_exchanges() {
            // If the work queue was deleted and declared again, its binding to the return exchange is missing: copies that come back then
            // go to the dead-letter queue instead of being lost.
            let arguments = if name == return_exchange {
                build_arguments([("alternate-exchange", dead_letter_exchange.clone())])
            } else {
                FieldTable::default()
            };
            declarations.push(Declaration::Exchange(name, kind, arguments));
        }
        let queues = self.list_queues().into_iter().filter(|(name, _)| !self.is_foreign || name != queue);
        declarations.extend(queues.map(|(name, arguments)| Declaration::Queue(name, arguments)));
        let bind = |queue: String, exchange: String| Declaration::Binding {
            queue,
            exchange,
            routing_key: String::new(),
            arguments: FieldTable::default(),
        };
        if self.observed_queue.is_none() {
            declarations.push(bind(Self::dead_letter_queue(queue), Self::dead_letter_exchange(queue)));
            declarations.push(bind(queue.clone(), return_exchange));
        }
        for delay in self.delays.iter().filter(|_| self.observed_queue.is_none()) {
            let rung = build_arguments([
                ("x-match", to_text_value("all")),
                (own_headers::RUNG, to_text_value(&rung_name(*delay))),
            ]);
            declarations.push(Declaration::Binding {
                queue: Self::retry_queue(queue, *delay),
                exchange: Self::retry_exchange(queue),
                routing_key: String::new(),
                arguments: rung,
            });
        }
        for QueueBinding { exchange, routing_key } in &self.bindings {
            declarations.push(Declaration::Binding {
                queue: queue.clone(),
                exchange: exchange.clone(),
                routing_key: routing_key.clone(),
                arguments: FieldTable::default(),
            });
        }
        declarations
    }

    /// Builds the arguments of the queue's type. The leaders of quorum queues are spread over the nodes of a cluster: by default
    /// each is on the node that declares the queue, so that one node would lead all queues of an `oncely topology apply`.
    fn build_type_arguments(&self) -> FieldTable {
        let mut table = build_arguments([("x-queue-type", to_text_value(self.queue_type.as_str()))]);
        match self.queue_type {
            QueueType::Quorum => {
                table.insert("x-queue-leader-locator".into(), to_text_value("balanced"));
            }
            QueueType::Classic => {}
        }
        table
    }

    /// Builds the arguments by which a queue passes its dead letters to an exchange. Quorum queues transfer dead letters at least once
    /// (RabbitMQ requires the overflow setting for it); classic ones can't: the broker may drop one if its target is unavailable.
    fn build_dead_lettering_arguments(&self, dead_letter_exchange: &str) -> FieldTable {
        let mut table = self.build_type_arguments();
        table.insert("x-dead-letter-exchange".into(), to_text_value(dead_letter_exchange));
        match self.queue_type {
            QueueType::Quorum => {
                table.insert("x-dead-letter-strategy".into(), to_text_value("at-least-once"));
                table.insert("x-overflow".into(), to_text_value("reject-publish"));
            }
            QueueType::Classic => {}
        }
        table
    }

    /// Declares all objects. Declaring again changes nothing; an object that exists with other arguments is left unchanged and reported,
    /// and the rest is declared.
    ///
    /// # Errors
    /// If the broker does not answer or refuses for another reason, with the name of the object.
    pub async fn apply(
        &self,
        connection: &Connection,
        limit: Duration,
    ) -> Result<AppliedTopology, (String, AmqpError)> {
        let mut applied = AppliedTopology::default();
        let exists = match query_queue_counts(connection, limit, &self.queue).await {
            Ok(counts) => counts.is_some(),
            Err(error) => return Err((format!("queue {}", self.queue), error)),
        };
        // The other objects survive when a queue is deleted.
        applied.is_unbound = !exists
            && self.bindings.is_empty()
            && self.observed_queue.is_none()
            && exchange_exists(connection, limit, &Self::return_exchange(&self.queue), ExchangeKind::Fanout)
                .await
                .map_err(|error| (format!("exchange {}", Self::return_exchange(&self.queue)), error))?;
        for declaration in self.build_declarations() {
            let name = declaration.to_string();
            match declaration.declare(connection, limit).await {
                Ok(()) => applied.done.push(name),
                // PRECONDITION_FAILED: other arguments, or unsupported ones. NOT_FOUND: a binding of a missing object.
                Err(error) if matches!(error.reply_code(), Some(404 | 406)) => {
                    match declaration.query_existing_object(connection, limit).await {
                        Ok(existing) => applied.refused.push(RefusedObject { name, error, existing }),
                        Err(error) => return Err((name, error)),
                    }
                }
                Err(error) => return Err((name, error)),
            }
        }
        Ok(applied)
    }

    /// Compares the existing objects with [`Topology::apply`]'s declaration. AMQP does not report a queue's arguments, but whether they are
    /// equal: so existing objects are declared once more, which changes nothing.
    ///
    /// # Errors
    /// If the broker does not answer; a missing queue is a finding and no error.
    pub async fn inspect(
        &self,
        connection: &Connection,
        limit: Duration,
    ) -> Result<TopologyReport, AmqpError> {
        let mut report = TopologyReport::default();
        for (name, arguments) in self.list_queues() {
            let (ready, subscriptions) = match query_queue_counts(connection, limit, &name).await {
                Ok(Some(counts)) => counts,
                Ok(None) => {
                    report.missing_queues.push(name);
                    continue;
                }
                // RESOURCE_LOCKED: another connection uses it exclusively.
                Err(error) if error.reply_code() == Some(405) => {
                    report.unfit_queues.push(name);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if name == self.queue {
                report.ready = Some(ready);
                report.subscriptions = Some(subscriptions);
            } else if name == Self::dead_letter_queue(&self.queue) {
                report.dead = Some(ready);
            }
            if self.is_foreign && name == self.queue {
                continue;
            }
            let result = Declaration::Queue(name.clone(), arguments).declare(connection, limit).await;
            match result.as_ref().err().map(AmqpError::reply_code) {
                None => {}
                Some(Some(405 | 406)) => report.unfit_queues.push(name),
                Some(Some(403)) => report.unseen_queues.push(name),
                Some(_) => result?,
            }
        }
        for (name, kind) in self.list_exchanges() {
            if !exchange_exists(connection, limit, &name, kind).await? {
                report.missing_exchanges.push(name);
            }
        }
        for QueueBinding { exchange, .. } in &self.bindings {
            if !exchange_exists(connection, limit, exchange, ExchangeKind::Topic).await? {
                report.missing_sources.push(exchange.clone());
            }
        }
        Ok(report)
    }
}

/// Queries the numbers of a queue's ready messages and consumers; `None` if the queue is missing.
async fn query_queue_counts(
    connection: &Connection,
    limit: Duration,
    name: &str,
) -> Result<Option<(u32, u32)>, AmqpError> {
    // A channel per query: the broker closes it if the queue is missing.
    let channel = wait_for_answer("channel.open", limit, connection.create_channel()).await?;
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let request = channel.queue_declare(name.into(), options, FieldTable::default());
    match wait_for_answer("queue.declare", limit, request).await {
        Ok(queue) => {
            wait_for_answer("channel.close", limit, channel.close(200, "done".into())).await?;
            Ok(Some((queue.message_count(), queue.consumer_count())))
        }
        Err(error) if error.reply_code() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Queries whether an exchange of this name exists, of any kind.
async fn exchange_exists(
    connection: &Connection,
    limit: Duration,
    name: &str,
    kind: ExchangeKind,
) -> Result<bool, AmqpError> {
    let channel = wait_for_answer("channel.open", limit, connection.create_channel()).await?;
    let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    let request = channel.exchange_declare(name.into(), kind, options, FieldTable::default());
    match wait_for_answer("exchange.declare", limit, request).await {
        Ok(()) => {
            wait_for_answer("channel.close", limit, channel.close(200, "done".into())).await.map(|()| true)
        }
        Err(error) if error.reply_code() == Some(404) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Delivery limit of a quorum queue before the broker itself dead-letters a message. Every lost connection counts for all messages that
/// were on it, so RabbitMQ's default of 20 (from 4.0 on) would move a whole queue into the dead-letter queue in one bad night with a
/// consumer timeout every half hour. At that rate a thousand are three weeks.
const DELIVERY_LIMIT: i64 = 1_000;

/// Delivery limit of the dead-letter queue, where every manual inspection counts and no further queue follows. Oncely's sweeps don't count:
/// a sweep publishes a fresh copy of each message that stays. "No limit" is -1 from RabbitMQ 4.0 on only, and another value than the
/// declared one would be refused (406).
const DEAD_LETTER_DELIVERY_LIMIT: i64 = 1_000_000;

/// Builds the arguments of an observer's queue: it must never block a producer, nor fill a disk when it is abandoned. One copy of each
/// message is enough; a queue without a consumer for a day is deleted, and a queue with an observer that can't record anything drops its
/// oldest messages.
fn build_observer_queue_arguments() -> FieldTable {
    build_arguments([
        ("x-queue-type", to_text_value(QueueType::Classic.as_str())),
        ("x-expires", AMQPValue::LongLongInt(OBSERVER_EXPIRY_MILLISECONDS)),
        ("x-max-length-bytes", AMQPValue::LongLongInt(MAX_OBSERVER_QUEUE_BYTES)),
        ("x-overflow", to_text_value("drop-head")),
    ])
}

const OBSERVER_EXPIRY_MILLISECONDS: i64 = 86_400_000;
const MAX_OBSERVER_QUEUE_BYTES: i64 = 1 << 30;

/// One declaration.
enum Declaration {
    Exchange(String, ExchangeKind, FieldTable),
    Queue(String, FieldTable),
    Binding { queue: String, exchange: String, routing_key: String, arguments: FieldTable },
}

impl std::fmt::Display for Declaration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exchange(name, ..) => write!(f, "exchange {name}"),
            Self::Queue(name, _) => write!(f, "queue {name}"),
            Self::Binding { queue, exchange, routing_key, .. } if routing_key.is_empty() => {
                write!(f, "binding {exchange} → {queue}")
            }
            Self::Binding { queue, exchange, routing_key, .. } => {
                write!(f, "binding {exchange} → {queue} ({routing_key})")
            }
        }
    }
}

impl Declaration {
    /// Queries the broker's state in place of the refused object.
    async fn query_existing_object(
        &self,
        connection: &Connection,
        limit: Duration,
    ) -> Result<ExistingObject, AmqpError> {
        let exists = match self {
            Self::Exchange(name, kind, _) => exchange_exists(connection, limit, name, kind.clone()).await?,
            Self::Queue(name, _) => query_queue_counts(connection, limit, name).await?.is_some(),
            Self::Binding { queue, exchange, .. } => {
                let mut missing = Vec::new();
                if !exchange_exists(connection, limit, exchange, ExchangeKind::Topic).await? {
                    missing.push(format!("exchange {exchange}"));
                }
                if query_queue_counts(connection, limit, queue).await?.is_none() {
                    missing.push(format!("queue {queue}"));
                }
                return Ok(ExistingObject::Missing(missing));
            }
        };
        Ok(if exists { ExistingObject::Same } else { ExistingObject::Nothing })
    }

    /// Sends the declaration on a channel of its own: the broker closes it when it refuses.
    async fn declare(&self, connection: &Connection, limit: Duration) -> Result<(), AmqpError> {
        let channel = wait_for_answer("channel.open", limit, connection.create_channel()).await?;
        match self {
            Self::Exchange(name, kind, arguments) => {
                let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
                let (name, arguments) = (name.as_str().into(), arguments.clone());
                let request = channel.exchange_declare(name, kind.clone(), options, arguments);
                wait_for_answer("exchange.declare", limit, request).await?;
            }
            Self::Queue(name, arguments) => {
                let (name, arguments) = (name.as_str().into(), arguments.clone());
                let request = channel.queue_declare(name, QueueDeclareOptions::durable(), arguments);
                wait_for_answer("queue.declare", limit, request).await?;
            }
            Self::Binding { queue, exchange, routing_key, arguments } => {
                let (queue, exchange) = (queue.as_str().into(), exchange.as_str().into());
                let (key, options) = (routing_key.as_str().into(), QueueBindOptions::default());
                let request = channel.queue_bind(queue, exchange, key, options, arguments.clone());
                wait_for_answer("queue.bind", limit, request).await?;
            }
        }
        wait_for_answer("channel.close", limit, channel.close(200, "done".into())).await
    }
}

/// Converts a text to the value of an argument.
fn to_text_value(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// Builds a table of arguments.
fn build_arguments<const N: usize>(entries: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert(name.into(), value);
    }
    table
}
