//! The queues and exchanges around a consumer's queue.
//!
//! ```text
//!   <queue>                 work; dead-letters to <queue>.dlx when the broker itself gives a message up
//!   <queue>.dlx    fanout   → <queue>.dead
//!   <queue>.retry  headers  → <queue>.retry.<delay>, by the header oncely-rung   (TTL; dead-letters to <queue>.return)
//!   <queue>.return fanout   → <queue>
//! ```
//! Fanout and headers exchanges do not look at the routing key, so a copy keeps its own through every stage.

use std::time::Duration;

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ExchangeKind};

use super::connection::{AmqpError, answer};
use crate::config::{Consumer, QueueType};
use crate::retry::rung_name;

/// The header that picks the rung. Not "x-…": a headers exchange leaves those out of its matching.
pub(crate) const RUNG_HEADER: &str = "oncely-rung";

/// The names around one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    queue: String,
    queue_type: QueueType,
    delays: Vec<Duration>,
}

/// What is there and what is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologyReport {
    /// Queues that do not exist.
    pub missing_queues: Vec<String>,
    /// Exchanges that do not exist.
    pub missing_exchanges: Vec<String>,
    /// Messages ready in the work queue and the dead-letter queue, and consumers of the work queue.
    pub ready: Option<(u32, u32, u32)>,
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
            })
            .collect()
    }

    /// The work queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.queue
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

    fn return_exchange(queue: &str) -> String {
        format!("{queue}.return")
    }

    fn exchanges(&self) -> Vec<(String, ExchangeKind)> {
        let mut exchanges = vec![(Self::dead_letter_exchange(&self.queue), ExchangeKind::Fanout)];
        if !self.delays.is_empty() {
            exchanges.push((Self::retry_exchange(&self.queue), ExchangeKind::Headers));
            exchanges.push((Self::return_exchange(&self.queue), ExchangeKind::Fanout));
        }
        exchanges
    }

    fn queues(&self) -> Vec<String> {
        let mut queues = vec![self.queue.clone(), Self::dead_letter_queue(&self.queue)];
        queues.extend(self.delays.iter().map(|delay| Self::retry_queue(&self.queue, *delay)));
        queues
    }

    /// Declares everything; returns what was declared. Declaring again changes nothing; a queue that exists with other
    /// arguments is left as it is and reported as an error.
    ///
    /// # Errors
    /// The broker's first refusal, with the name of what it refused.
    pub async fn apply(
        &self,
        connection: &Connection,
        limit: Duration,
    ) -> Result<Vec<String>, (String, AmqpError)> {
        let mut done = Vec::new();
        for (name, kind) in self.exchanges() {
            self.declare_exchange(connection, &name, kind, limit)
                .await
                .map_err(|error| (name.clone(), error))?;
            done.push(format!("exchange {name}"));
        }
        let dead = Self::dead_letter_queue(&self.queue);
        let long = |text: &str| AMQPValue::LongString(text.into());
        let kind = long(self.queue_type.as_str());
        // A message that the broker gives up itself (delivery limit, length, TTL) must land where ours do.
        let work = arguments([
            ("x-queue-type", kind.clone()),
            ("x-dead-letter-exchange", long(&Self::dead_letter_exchange(&self.queue))),
        ]);
        let mut queues = vec![(self.queue.clone(), work)];
        queues.push((dead.clone(), arguments([("x-queue-type", kind.clone())])));
        for delay in &self.delays {
            let ttl = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
            let waiting = arguments([
                ("x-queue-type", kind.clone()),
                ("x-message-ttl", AMQPValue::LongLongInt(ttl)),
                ("x-dead-letter-exchange", long(&Self::return_exchange(&self.queue))),
            ]);
            queues.push((Self::retry_queue(&self.queue, *delay), waiting));
        }
        for (name, arguments) in queues {
            self.declare_queue(connection, &name, arguments, limit)
                .await
                .map_err(|error| (name.clone(), error))?;
            done.push(format!("queue {name}"));
        }
        let mut bindings = vec![(dead, Self::dead_letter_exchange(&self.queue), FieldTable::default())];
        if !self.delays.is_empty() {
            bindings.push((self.queue.clone(), Self::return_exchange(&self.queue), FieldTable::default()));
        }
        for delay in &self.delays {
            let rung = arguments([("x-match", long("all")), (RUNG_HEADER, long(&rung_name(*delay)))]);
            bindings.push((Self::retry_queue(&self.queue, *delay), Self::retry_exchange(&self.queue), rung));
        }
        for (queue, exchange, arguments) in bindings {
            let bound = self.bind(connection, &queue, &exchange, arguments, limit).await;
            bound.map_err(|error| (format!("{exchange} → {queue}"), error))?;
        }
        Ok(done)
    }

    /// Looks what is there, declaring nothing.
    ///
    /// # Errors
    /// When the broker does not answer; a missing queue is no error but a finding.
    pub async fn inspect(
        &self,
        connection: &Connection,
        limit: Duration,
    ) -> Result<TopologyReport, AmqpError> {
        let mut report = TopologyReport::default();
        let mut counts = Vec::new();
        for name in self.queues() {
            // A channel for each: the broker closes it when the queue is missing.
            let channel = answer("channel.open", limit, connection.create_channel()).await?;
            let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            let declared = channel.queue_declare(name.as_str().into(), options, FieldTable::default());
            match answer("queue.declare", limit, declared).await {
                Ok(queue) => {
                    counts.push((name, queue.message_count(), queue.consumer_count()));
                    answer("channel.close", limit, channel.close(200, "done".into())).await?;
                }
                Err(error) if error.reply_code() == Some(404) => report.missing_queues.push(name),
                Err(error) => return Err(error),
            }
        }
        for (name, kind) in self.exchanges() {
            let channel = answer("channel.open", limit, connection.create_channel()).await?;
            let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
            let declared =
                channel.exchange_declare(name.as_str().into(), kind, options, FieldTable::default());
            match answer("exchange.declare", limit, declared).await {
                Ok(()) => answer("channel.close", limit, channel.close(200, "done".into())).await?,
                Err(error) if error.reply_code() == Some(404) => report.missing_exchanges.push(name),
                Err(error) => return Err(error),
            }
        }
        let count = |name: &str| {
            counts.iter().find(|(queue, _, _)| queue == name).map(|(_, ready, users)| (*ready, *users))
        };
        if let (Some((ready, users)), Some((dead, _))) =
            (count(&self.queue), count(&Self::dead_letter_queue(&self.queue)))
        {
            report.ready = Some((ready, dead, users));
        }
        Ok(report)
    }

    async fn declare_exchange(
        &self,
        connection: &Connection,
        name: &str,
        kind: ExchangeKind,
        limit: Duration,
    ) -> Result<(), AmqpError> {
        let channel = answer("channel.open", limit, connection.create_channel()).await?;
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let declared = channel.exchange_declare(name.into(), kind, options, FieldTable::default());
        answer("exchange.declare", limit, declared).await?;
        answer("channel.close", limit, channel.close(200, "done".into())).await
    }

    async fn declare_queue(
        &self,
        connection: &Connection,
        name: &str,
        arguments: FieldTable,
        limit: Duration,
    ) -> Result<(), AmqpError> {
        let channel = answer("channel.open", limit, connection.create_channel()).await?;
        let declared = channel.queue_declare(name.into(), QueueDeclareOptions::durable(), arguments);
        answer("queue.declare", limit, declared).await?;
        answer("channel.close", limit, channel.close(200, "done".into())).await
    }

    async fn bind(
        &self,
        connection: &Connection,
        queue: &str,
        exchange: &str,
        arguments: FieldTable,
        limit: Duration,
    ) -> Result<(), AmqpError> {
        let channel = answer("channel.open", limit, connection.create_channel()).await?;
        let bound = channel.queue_bind(
            queue.into(),
            exchange.into(),
            "".into(),
            QueueBindOptions::default(),
            arguments,
        );
        answer("queue.bind", limit, bound).await?;
        answer("channel.close", limit, channel.close(200, "done".into())).await
    }
}

fn arguments<const N: usize>(entries: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert(name.into(), value);
    }
    table
}
