//! The messages: a queue that does not become empty while a contender is measured.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::bench::site::Site;

/// Messages that are published at once.
const CHUNK: u64 = 10_000;
/// Of a chunk, so many are published once more after the chunk that follows it.
const AGAIN: u64 = 1_000;
/// Below this depth the next chunk is published.
const LOW: u64 = 30_000;
/// Between two looks at the queue.
const LOOK: Duration = Duration::from_millis(100);

/// What has been published.
#[derive(Debug, Default)]
pub(crate) struct Supply {
    chunks: u64,
    /// The fewest messages that were seen in the queue.
    pub(crate) least: Option<u64>,
}

impl Supply {
    /// Returns how many different messages there are.
    pub(crate) fn distinct(&self) -> u64 {
        self.chunks * CHUNK
    }

    /// Returns how many messages come twice.
    pub(crate) fn duplicates(&self) -> u64 {
        self.chunks.saturating_sub(1) * AGAIN
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

    /// Publishes a chunk, and the beginning of the one before a second time: the same seed gives the same messages.
    async fn publish(&mut self, site: &Site<'_>) -> anyhow::Result<()> {
        let parts = [(CHUNK, Some(self.chunks)), (AGAIN, self.chunks.checked_sub(1))];
        for (messages, seed) in parts {
            let Some(seed) = seed else { continue };
            let (messages, seed) = (messages.to_string(), seed.to_string());
            let arguments = ["publish", "--queue", &site.queue, "--messages", &messages, "--seed", &seed];
            site.client(&arguments).await?;
        }
        self.chunks += 1;
        Ok(())
    }
}
