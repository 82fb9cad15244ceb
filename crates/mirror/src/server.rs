//! Reads a Redis server's properties, and measures how fast it answers.

use std::time::Instant;

use redis::Value;

use super::client::Mirror;
use super::connection::RESPONSE_TIMEOUT;
use super::error::MirrorError;
use super::info::{RedisFacts, parse_info};
use super::sentinel::{SentinelAnswer, query_sentinel};

/// Number of round trips measured.
const MEASURED_ROUND_TRIPS: usize = 5;

impl Mirror {
    /// Queries all Sentinels at once for the address of the master, and returns each one's answer. For operator commands.
    pub async fn query_sentinels(&self) -> Result<Vec<SentinelAnswer>, MirrorError> {
        let settings = &*self.settings().reread_urls()?;
        let queries = settings.sentinels.iter().map(|sentinel| query_sentinel(settings, sentinel));
        Ok(futures::future::join_all(queries).await)
    }

    /// Reads the server's properties, and measures its latency. For operator commands: with a long timeout, and without the breaker.
    pub async fn read_facts(&self) -> Result<RedisFacts, MirrorError> {
        let mut link = self.connect().await?;
        let mut rounds = Vec::with_capacity(MEASURED_ROUND_TRIPS);
        for _ in 0..MEASURED_ROUND_TRIPS {
            let start = Instant::now();
            wait_for_answer(redis::cmd("PING").query_async::<Value>(&mut link.connection)).await?;
            rounds.push(start.elapsed());
        }
        rounds.sort_unstable();
        let info = wait_for_answer(redis::cmd("INFO").query_async::<String>(&mut link.connection)).await?;
        Ok(RedisFacts { latency: rounds[MEASURED_ROUND_TRIPS / 2], ..parse_info(&info) })
    }
}

/// Waits for the response to a request for up to [`RESPONSE_TIMEOUT`].
async fn wait_for_answer<T>(request: impl Future<Output = redis::RedisResult<T>>) -> Result<T, MirrorError> {
    match tokio::time::timeout(RESPONSE_TIMEOUT, request).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(MirrorError::Budget(RESPONSE_TIMEOUT)),
    }
}
