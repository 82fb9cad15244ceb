//! The queues and exchanges around a consumer's queue.
//!
//! ```text
//!   <queue>                 work; dead-letters to <queue>.dlx when the broker itself gives a message up
//!   <queue>.dlx    fanout   → <queue>.dead
//!   <queue>.retry  headers  → <queue>.retry.<delay>, by the header oncely-rung   (TTL; dead-letters to <queue>.return)
//!   <queue>.return fanout   → <queue>; where that binding is gone: alternate exchange <queue>.dlx
//! ```
//! Fanout and headers exchanges do not look at the routing key, so a copy keeps its own through every stage.

use std::time::Duration;

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ExchangeKind};

use super::applied::{Applied, Beside, Refused};
use super::connection::{AmqpError, answer};
use crate::config::{Consumer, OBSERVER, QueueArgument, QueueBinding, QueueType};
use crate::own_headers;
use crate::retry::rung_name;

/// The names around one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    queue: String,
    queue_type: QueueType,
    delays: Vec<Duration>,
    /// Somebody else declares the work queue.
    is_foreign: bool,
    arguments: Vec<(String, QueueArgument)>,
    bindings: Vec<QueueBinding>,
    /// The queue beside which this one only observes.
    beside: Option<String>,
}

/// What is there and what is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologyReport {
    /// Queues that do not exist.
    pub missing_queues: Vec<String>,
    /// Exchanges that do not exist.
    pub missing_exchanges: Vec<String>,
    /// Exchanges of yours that the queue is to be bound to, and that do not exist.
    pub missing_sources: Vec<String>,
    /// Queues that are there otherwise than [`Topology::apply`] declares them, or that one connection has for itself.
    pub unfit_queues: Vec<String>,
    /// Queues about which that can't be asked: this user may not declare them.
    pub unseen_queues: Vec<String>,
    /// Messages ready in the work queue, where it is there.
    pub ready: Option<u32>,
    /// Messages ready in the dead-letter queue, where it is there.
    pub dead: Option<u32>,
    /// Consumers of the work queue, where it is there.
    pub subscriptions: Option<u32>,
}

impl Topology {
    /// The names for each queue of a consumer.
    #[must_use]
    pub fn of(consumer: &Consumer) -> Vec<Self> {
        let mut delays = consumer.retry.delays.clone();
        delays.dedup();
        consumer
            .queues
            .iter()
            .map(|queue| Self {
                queue: queue.clone(),
                queue_type: consumer.queue_type,
                delays: delays.clone(),
                is_foreign: !consumer.declare && !consumer.observes(),
                arguments: consumer.queue_arguments.clone(),
                bindings: consumer.bindings.clone(),
                beside: queue.strip_suffix(OBSERVER).filter(|_| consumer.observes()).map(str::to_owned),
            })
            .collect()
    }

    /// Is it only for looking? Then there is nothing around it.
    #[must_use]
    pub fn observes(&self) -> bool {
        self.beside.is_some()
    }

    /// Where it only observes: the queue that it needs a copy of each message of.
    #[must_use]
    pub fn beside(&self) -> Option<&str> {
        self.beside.as_deref()
    }

    /// The exchanges of yours that it is to be bound to.
    #[must_use]
    pub fn bindings(&self) -> &[QueueBinding] {
        &self.bindings
    }

    /// The same with other bindings.
    #[must_use]
    pub fn bound_to(mut self, bindings: Vec<QueueBinding>) -> Self {
        self.bindings = bindings;
        self
    }

    /// The work queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// Do its messages wait in queues of their own between tries?
    #[must_use]
    pub fn has_retries(&self) -> bool {
        !self.delays.is_empty()
    }

    /// Exchange for dead letters.
    #[must_use]
    pub fn dead_letter_exchange(queue: &str) -> String {
        format!("{queue}.dlx")
    }

    /// Queue of dead letters.
    #[must_use]
    pub fn dead_letter_queue(queue: &str) -> String {
        format!("{queue}.dead")
    }

    /// Exchange for copies that come back later.
    #[must_use]
    pub fn retry_exchange(queue: &str) -> String {
        format!("{queue}.retry")
    }

    /// Queue where copies wait for `delay`.
    #[must_use]
    pub fn retry_queue(queue: &str, delay: Duration) -> String {
        format!("{queue}.retry.{}", rung_name(delay))
    }

    /// Exchange whose only way leads back to the queue: for copies that come back later, and for requeued dead letters.
    #[must_use]
    pub fn return_exchange(queue: &str) -> String {
        format!("{queue}.return")
    }

    fn exchanges(&self) -> Vec<(String, ExchangeKind)> {
        // Who only observes gives nothing up and publishes nothing.
        if self.beside.is_some() {
            return Vec::new();
        }
        let mut exchanges = vec![
            (Self::dead_letter_exchange(&self.queue), ExchangeKind::Fanout),
            // Without retries too: requeued dead letters go this way.
            (Self::return_exchange(&self.queue), ExchangeKind::Fanout),
        ];
        if !self.delays.is_empty() {
            exchanges.push((Self::retry_exchange(&self.queue), ExchangeKind::Headers));
        }
        exchanges
    }

    /// The queues with their arguments, the work queue first.
    fn queues(&self) -> Vec<(String, FieldTable)> {
        let queue = &self.queue;
        if self.beside.is_some() {
            return vec![(queue.clone(), observing())];
        }
        // A message that the broker gives up itself (delivery limit, length, TTL) must land where ours do.
        let mut work = self.queue_arguments(&Self::dead_letter_exchange(queue));
        let mut dead = arguments([("x-queue-type", text(self.queue_type.as_str()))]);
        match self.queue_type {
            QueueType::Quorum => {
                work.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(DELIVERY_LIMIT));
                dead.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(LOOKS_LIMIT));
            }
            QueueType::Classic => {}
        }
        for (name, value) in &self.arguments {
            let value = match value {
                QueueArgument::Text(value) => text(value),
                QueueArgument::Integer(value) => AMQPValue::LongLongInt(*value),
                QueueArgument::Boolean(value) => AMQPValue::Boolean(*value),
            };
            work.insert(name.as_str().into(), value);
        }
        let mut queues = vec![(queue.clone(), work), (Self::dead_letter_queue(queue), dead)];
        for delay in &self.delays {
            let mut waiting = self.queue_arguments(&Self::return_exchange(queue));
            let ttl = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
            waiting.insert("x-message-ttl".into(), AMQPValue::LongLongInt(ttl));
            queues.push((Self::retry_queue(queue, *delay), waiting));
        }
        queues
    }

    /// Everything to declare, in the order in which it can be.
    fn steps(&self) -> Vec<Step> {
        let queue = &self.queue;
        let dead_letter_exchange = text(&Self::dead_letter_exchange(queue));
        let return_exchange = Self::return_exchange(queue);
        let mut steps = Vec::new();
        for (name, kind) in self.exchanges() {
            // Where somebody has declared the work queue anew, its binding to the return exchange is gone: a copy that
            // comes back then goes to the dead-letter queue, not to nowhere.
            let arguments = if name == return_exchange {
                arguments([("alternate-exchange", dead_letter_exchange.clone())])
            } else {
                FieldTable::default()
            };
            steps.push(Step::Exchange(name, kind, arguments));
        }
        let queues = self.queues().into_iter().filter(|(name, _)| !self.is_foreign || name != queue);
        steps.extend(queues.map(|(name, arguments)| Step::Queue(name, arguments)));
        let bind = |queue: String, exchange: String| Step::Binding {
            queue,
            exchange,
            routing_key: String::new(),
            arguments: FieldTable::default(),
        };
        if self.beside.is_none() {
            steps.push(bind(Self::dead_letter_queue(queue), Self::dead_letter_exchange(queue)));
            steps.push(bind(queue.clone(), return_exchange));
        }
        for delay in self.delays.iter().filter(|_| self.beside.is_none()) {
            let rung = arguments([("x-match", text("all")), (own_headers::RUNG, text(&rung_name(*delay)))]);
            steps.push(Step::Binding {
                queue: Self::retry_queue(queue, *delay),
                exchange: Self::retry_exchange(queue),
                routing_key: String::new(),
                arguments: rung,
            });
        }
        for QueueBinding { exchange, routing_key } in &self.bindings {
            steps.push(Step::Binding {
                queue: queue.clone(),
                exchange: exchange.clone(),
                routing_key: routing_key.clone(),
                arguments: FieldTable::default(),
            });
        }
        steps
    }

    /// Type and dead-letter exchange. Quorum queues hand dead letters over at least once (RabbitMQ asks for the overflow
    /// setting with it); classic ones can't: there the broker may drop one when its target is away.
    fn queue_arguments(&self, dead_letter_exchange: &str) -> FieldTable {
        let mut table = arguments([
            ("x-queue-type", text(self.queue_type.as_str())),
            ("x-dead-letter-exchange", text(dead_letter_exchange)),
        ]);
        match self.queue_type {
            QueueType::Quorum => {
                table.insert("x-dead-letter-strategy".into(), text("at-least-once"));
                table.insert("x-overflow".into(), text("reject-publish"));
            }
            QueueType::Classic => {}
        }
        table
    }

    /// Declares everything. Declaring again changes nothing; what exists with other arguments is left as it is and
    /// reported, the rest is declared all the same.
    ///
    /// # Errors
    /// When the broker does not answer or refuses for another reason; with the name of what was to be declared.
    pub async fn apply(
        &self,
        connection: &Connection,
        limit: Duration,
    ) -> Result<Applied, (String, AmqpError)> {
        let mut applied = Applied::default();
        let existed = match look(connection, limit, &self.queue).await {
            Ok(found) => found.is_some(),
            Err(error) => return Err((format!("queue {}", self.queue), error)),
        };
        // What is around it outlives a queue that is deleted.
        applied.is_unbound = !existed
            && self.bindings.is_empty()
            && self.beside.is_none()
            && is_exchange(connection, limit, &Self::return_exchange(&self.queue), ExchangeKind::Fanout)
                .await
                .map_err(|error| (format!("exchange {}", Self::return_exchange(&self.queue)), error))?;
        for step in self.steps() {
            let name = step.to_string();
            match step.declare(connection, limit).await {
                Ok(()) => applied.done.push(name),
                // PRECONDITION_FAILED: other arguments, or such as the broker does not take. NOT_FOUND: a binding of what is not there.
                Err(error) if matches!(error.reply_code(), Some(404 | 406)) => {
                    match step.found(connection, limit).await {
                        Ok(found) => applied.refused.push(Refused { name, error, found }),
                        Err(error) => return Err((name, error)),
                    }
                }
                Err(error) => return Err((name, error)),
            }
        }
        Ok(applied)
    }

    /// Looks what is there, and whether it is what [`Topology::apply`] declares. AMQP shows nobody a queue's arguments, but it
    /// tells whether they are the same: so what is there is declared once more, which changes nothing.
    ///
    /// # Errors
    /// When the broker does not answer; a missing queue is no error but a finding.
    pub async fn inspect(
        &self,
        connection: &Connection,
        limit: Duration,
    ) -> Result<TopologyReport, AmqpError> {
        let mut report = TopologyReport::default();
        for (name, arguments) in self.queues() {
            let (ready, subscriptions) = match look(connection, limit, &name).await {
                Ok(Some(counts)) => counts,
                Ok(None) => {
                    report.missing_queues.push(name);
                    continue;
                }
                // RESOURCE_LOCKED: another connection has it for itself.
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
            let again = Step::Queue(name.clone(), arguments).declare(connection, limit).await;
            match again.as_ref().err().map(AmqpError::reply_code) {
                None => {}
                Some(Some(405 | 406)) => report.unfit_queues.push(name),
                Some(Some(403)) => report.unseen_queues.push(name),
                Some(_) => again?,
            }
        }
        for (name, kind) in self.exchanges() {
            if !is_exchange(connection, limit, &name, kind).await? {
                report.missing_exchanges.push(name);
            }
        }
        for QueueBinding { exchange, .. } in &self.bindings {
            if !is_exchange(connection, limit, exchange, ExchangeKind::Topic).await? {
                report.missing_sources.push(exchange.clone());
            }
        }
        Ok(report)
    }
}

/// Messages ready in a queue and its consumers; `None` where it is missing.
async fn look(connection: &Connection, limit: Duration, name: &str) -> Result<Option<(u32, u32)>, AmqpError> {
    // A channel for each: the broker closes it when the queue is missing.
    let channel = answer("channel.open", limit, connection.create_channel()).await?;
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let declared = channel.queue_declare(name.into(), options, FieldTable::default());
    match answer("queue.declare", limit, declared).await {
        Ok(queue) => {
            answer("channel.close", limit, channel.close(200, "done".into())).await?;
            Ok(Some((queue.message_count(), queue.consumer_count())))
        }
        Err(error) if error.reply_code() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Is there an exchange of this name?
async fn is_exchange(
    connection: &Connection,
    limit: Duration,
    name: &str,
    kind: ExchangeKind,
) -> Result<bool, AmqpError> {
    let channel = answer("channel.open", limit, connection.create_channel()).await?;
    let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    let declared = channel.exchange_declare(name.into(), kind, options, FieldTable::default());
    match answer("exchange.declare", limit, declared).await {
        Ok(()) => answer("channel.close", limit, channel.close(200, "done".into())).await.map(|()| true),
        Err(error) if error.reply_code() == Some(404) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Deliveries of one message by a quorum queue before the broker itself dead-letters it. Every lost connection counts for
/// all messages that were on it, so RabbitMQ's default of 20 (from 4.0 on) would empty a queue into the dead-letter queue in
/// one bad night: a consumer timeout every half hour. A thousand of those are three weeks.
const DELIVERY_LIMIT: i64 = 1_000;

/// For the dead-letter queue, where every look by hand counts and nothing lies behind it. Ours never look: a sweep puts a
/// fresh copy behind each message that stays. "No limit" is -1 from RabbitMQ 4.0 on only, and another value than the one
/// that a queue was declared with would be refused (406).
const LOOKS_LIMIT: i64 = 1_000_000;

/// For a queue beside another one, with whatever that is: it must never be what stops a producer, nor fill a disk when nobody looks any more.
/// One copy of each message is enough; a queue that nobody has read for a day goes, and one that is read by somebody who can't note anything
/// forgets its oldest messages.
fn observing() -> FieldTable {
    arguments([
        ("x-queue-type", text(QueueType::Classic.as_str())),
        ("x-expires", AMQPValue::LongLongInt(UNREAD_MILLISECONDS)),
        ("x-max-length-bytes", AMQPValue::LongLongInt(UNREAD_BYTES)),
        ("x-overflow", text("drop-head")),
    ])
}

const UNREAD_MILLISECONDS: i64 = 86_400_000;
const UNREAD_BYTES: i64 = 1 << 30;

/// One thing to declare.
enum Step {
    Exchange(String, ExchangeKind, FieldTable),
    Queue(String, FieldTable),
    Binding { queue: String, exchange: String, routing_key: String, arguments: FieldTable },
}

impl std::fmt::Display for Step {
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

impl Step {
    /// Asks which object the broker holds under the refused name.
    async fn found(&self, connection: &Connection, limit: Duration) -> Result<Beside, AmqpError> {
        let is_there = match self {
            Self::Exchange(name, kind, _) => is_exchange(connection, limit, name, kind.clone()).await?,
            Self::Queue(name, _) => look(connection, limit, name).await?.is_some(),
            Self::Binding { queue, exchange, .. } => {
                let mut missing = Vec::new();
                if !is_exchange(connection, limit, exchange, ExchangeKind::Topic).await? {
                    missing.push(format!("exchange {exchange}"));
                }
                if look(connection, limit, queue).await?.is_none() {
                    missing.push(format!("queue {queue}"));
                }
                return Ok(Beside::Missing(missing));
            }
        };
        Ok(if is_there { Beside::Same } else { Beside::Nothing })
    }

    /// On a channel of its own: the broker closes it when it refuses.
    async fn declare(&self, connection: &Connection, limit: Duration) -> Result<(), AmqpError> {
        let channel = answer("channel.open", limit, connection.create_channel()).await?;
        match self {
            Self::Exchange(name, kind, arguments) => {
                let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
                let (name, arguments) = (name.as_str().into(), arguments.clone());
                let declared = channel.exchange_declare(name, kind.clone(), options, arguments);
                answer("exchange.declare", limit, declared).await?;
            }
            Self::Queue(name, arguments) => {
                let (name, arguments) = (name.as_str().into(), arguments.clone());
                let declared = channel.queue_declare(name, QueueDeclareOptions::durable(), arguments);
                answer("queue.declare", limit, declared).await?;
            }
            Self::Binding { queue, exchange, routing_key, arguments } => {
                let (queue, exchange) = (queue.as_str().into(), exchange.as_str().into());
                let (key, options) = (routing_key.as_str().into(), QueueBindOptions::default());
                let bound = channel.queue_bind(queue, exchange, key, options, arguments.clone());
                answer("queue.bind", limit, bound).await?;
            }
        }
        answer("channel.close", limit, channel.close(200, "done".into())).await
    }
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn arguments<const N: usize>(entries: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert(name.into(), value);
    }
    table
}
