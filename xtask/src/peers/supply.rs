//! The messages: a queue that does not become empty while a contender is measured.

use std::time::Duration;

use futures::future::try_join_all;
use tokio_util::sync::CancellationToken;

use crate::bench::site::Site;

/// Messages that a publisher sends in its turn.
const CHUNK: u64 = 10_000;
/// Publishers that send at the same time.
const PUBLISHERS: u64 = 2;
/// Number of messages of a turn that are published once more in the next turn.
const AGAIN: u64 = 2_000;
/// Below this depth the next turn begins.
const LOW: u64 = 20_000;
/// Between two looks at the queue.
const LOOK: Duration = Duration::from_millis(100);

/// Counts the messages that have been published.
#[derive(Debug, Default)]
pub(crate) struct Supply {
    turns: u64,
    /// The fewest messages that were seen in the queue.
    pub(crate) least: Option<u64>,
}

impl Supply {
    /// Returns how many different messages there are.
    pub(crate) fn distinct(&self) -> u64 {
        self.turns * PUBLISHERS * CHUNK
    }

    /// Returns how many messages come twice.
    pub(crate) fn duplicates(&self) -> u64 {
        self.turns.saturating_sub(1) * AGAIN
    }

    /// Publishes until the queue is full.
    pub(crate) async fn fill(&mut self, site: &Site<'_>) -> anyhow::Result<()> {
        while u64::from(site.broker().await?.ready(&site.queue).await?) < LOW {
            self.publish(site).await?;
        }
        Ok(())
    }

    /// Keeps the queue full until it is stopped.
    pub(crate) async fn keep(&mut self, site: &Site<'_>, stop: &CancellationToken) -> anyhow::Result<()> {
        let broker = site.broker().await?;
        while !stop.is_cancelled() {
            let depth = u64::from(broker.ready(&site.queue).await?);
            self.least = Some(self.least.map_or(depth, |least| least.min(depth)));
            if depth < LOW {
                self.publish(site).await?;
            } else {
                tokio::time::sleep(LOOK).await;
            }
        }
        Ok(())
    }

    /// Publishes a turn, and beside it the beginning of the one before a second time: the same seed gives the same messages.
    async fn publish(&mut self, site: &Site<'_>) -> anyhow::Result<()> {
        let seeds = self.turns * PUBLISHERS..(self.turns + 1) * PUBLISHERS;
        let again = seeds.start.checked_sub(PUBLISHERS).map(|seed| send(site, AGAIN, seed));
        try_join_all(seeds.map(|seed| send(site, CHUNK, seed)).chain(again)).await?;
        self.turns += 1;
        Ok(())
    }
}

async fn send(site: &Site<'_>, messages: u64, seed: u64) -> anyhow::Result<()> {
    let (messages, seed) = (messages.to_string(), seed.to_string());
    site.client(&["publish", "--queue", &site.queue, "--messages", &messages, "--seed", &seed]).await
}
