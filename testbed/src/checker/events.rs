//! Events: what committed, by the emitters' own books, against what came out of the queues.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicConsumeOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, Consumer};
use sqlx::{PgConnection, Row as _};

use super::finding::{Findings, Invariant, What};
use super::ledger::digest;

/// Where `judge.tell` sends events: a direct exchange.
pub const EXCHANGE: &str = "judge.events";
/// The queue of events with an ordering key, and its routing key. All of a key go through one queue, or nobody could say which
/// of two came first.
pub const ORDERED: (&str, &str) = ("judge.events.ordered", "ordered");
/// The queue of events without one, and its routing key.
pub const FREE: (&str, &str) = ("judge.events.free", "free");

/// An event whose transaction committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// SHA-256 of its body.
    pub digest: String,
    /// Tenant and ordering key, and its number among the commits under them; `None`: no order.
    pub place: Option<(String, i64)>,
}

/// An event that came out of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its `message_id`.
    pub id: String,
    /// SHA-256 of its body.
    pub digest: String,
}

/// Everything that the judgement of events is made of.
#[derive(Clone, Debug, Default)]
pub struct Events {
    /// What committed, by `message_id`.
    pub committed: HashMap<String, Emitted>,
    /// What came out of each queue, in its order.
    pub arrived: Vec<Vec<Arrival>>,
    /// What is still in the product's table: waits, or is parked.
    pub left: HashSet<String>,
}

/// Nothing comes for so long: nothing more is there.
const QUIET: Duration = Duration::from_secs(1);
/// The same where something is missing: a slow broker is no lost event.
const PATIENCE: Duration = Duration::from_secs(8);

impl Events {
    /// Reads the emitters' books and what has not left.
    pub async fn read(&mut self, connection: &mut PgConnection) -> anyhow::Result<()> {
        let rows = sqlx::query("select id, digest, tenant || '/' || ordering_key, number from judge.emitted")
            .fetch_all(&mut *connection)
            .await?;
        self.committed.clear();
        for row in &rows {
            let place = row.get::<Option<String>, _>(2).zip(row.get::<Option<i64>, _>(3));
            self.committed.insert(row.get(0), Emitted { digest: row.get(1), place });
        }
        let rows = sqlx::query(
            "select coalesce(message_id, id::text) from oncely.events where tenant <> 'stranger'",
        )
        .fetch_all(connection)
        .await?;
        self.left = rows.iter().map(|row| row.get(0)).collect();
        Ok(())
    }

    /// Takes all events out of the queues. Only when nobody publishes any more, and after [`Events::read`].
    pub async fn take(&mut self, url: &str) -> anyhow::Result<()> {
        let connection = Connection::connect(url, ConnectionProperties::default())
            .await
            .context("cannot connect to RabbitMQ")?;
        // Open until the connection is closed: what is dropped before closes itself meanwhile, and the two meet.
        let (ordered, free) = futures::try_join!(
            self.take_queue(&connection, ORDERED.0, true),
            self.take_queue(&connection, FREE.0, false),
        )?;
        connection.close(200, "done".into()).await?;
        for (arrived, _channel, _consumer) in [ordered, free] {
            self.arrived.push(arrived);
        }
        Ok(())
    }

    /// What comes out of one queue, of events with an ordering key or without.
    async fn take_queue(
        &self,
        connection: &Connection,
        queue: &str,
        is_ordered: bool,
    ) -> anyhow::Result<(Vec<Arrival>, Channel, Consumer)> {
        let mut missing: HashSet<&str> = self
            .committed
            .iter()
            .filter(|(id, event)| event.place.is_some() == is_ordered && !self.left.contains(*id))
            .map(|(id, _)| id.as_str())
            .collect();
        let channel = connection.create_channel().await?;
        let mut consumer = channel
            .basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default())
            .await?;
        let mut arrived = Vec::new();
        let mut last = Instant::now();
        loop {
            let limit = if missing.is_empty() { QUIET } else { PATIENCE };
            let wait = limit.saturating_sub(last.elapsed());
            let Ok(Some(delivery)) = tokio::time::timeout(wait, consumer.next()).await else { break };
            let delivery = delivery?;
            let id = delivery.properties.message_id().as_ref().map(ToString::to_string);
            let arrival = Arrival { id: id.unwrap_or_default(), digest: digest(&delivery.data) };
            missing.remove(arrival.id.as_str());
            arrived.push(arrival);
            delivery.ack(BasicAckOptions::default()).await?;
            last = Instant::now();
        }
        Ok((arrived, channel, consumer))
    }

    /// Different events that arrived.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.ids().len() as u64
    }

    /// Arrivals of events that had arrived before.
    #[must_use]
    pub fn repeats(&self) -> u64 {
        self.arrived.iter().map(Vec::len).sum::<usize>() as u64 - self.published()
    }

    fn ids(&self) -> HashSet<&str> {
        self.arrived.iter().flatten().map(|arrival| arrival.id.as_str()).collect()
    }

    /// I6, and of I10 what concerns events.
    pub(super) fn judge(&self, found: &mut Findings) {
        let arrived = self.ids();
        for id in self.committed.keys() {
            if !arrived.contains(id.as_str()) && !self.left.contains(id) {
                found.add(Invariant::I6, What::EventLost, id);
            }
        }
        if !self.left.is_empty() {
            found.add(Invariant::I10, What::Outbox, format!("{} events", self.left.len()));
        }
        for queue in &self.arrived {
            self.judge_queue(queue, found);
        }
    }

    fn judge_queue(&self, queue: &[Arrival], found: &mut Findings) {
        let mut seen: HashSet<&str> = HashSet::new();
        let mut highest: HashMap<&str, i64> = HashMap::new();
        for arrival in queue {
            let first = seen.insert(&arrival.id);
            let emitted = self.committed.get(&arrival.id);
            match emitted {
                None if first => found.add(Invariant::I6, What::EventUnowed, &arrival.id),
                Some(emitted) if emitted.digest != arrival.digest => {
                    found.add(Invariant::I6, What::EventUnowed, format!("{} with another body", arrival.id));
                }
                _ => {}
            }
            // A repeat comes late by its nature.
            if first && let Some((key, number)) = emitted.and_then(|emitted| emitted.place.as_ref()) {
                let highest = highest.entry(key).or_insert(i64::MIN);
                if number < highest {
                    found.add(
                        Invariant::I6,
                        What::EventOrder,
                        format!("{key}: number {number} after {highest}"),
                    );
                }
                *highest = (*highest).max(*number);
            }
        }
    }
}
