//! Removes tags from Redis.

use chrono::{DateTime, Utc};
use redis::{Pipeline, Value};

use super::client::Mirror;
use super::error::MirrorError;
use super::tag::Tag;

/// Number of tags removed in one round trip.
const TAGS_PER_ROUND_TRIP: usize = 200;

impl Mirror {
    /// Removes the tags that are present; returns their number. For operator commands: with a long timeout, and without the breaker.
    pub async fn remove(&self, tags: &[Tag], now: DateTime<Utc>) -> Result<i64, MirrorError> {
        if tags.is_empty() {
            return Ok(0);
        }
        let mut link = self.connect().await?;
        let mut removed = 0;
        for chunk in tags.chunks(TAGS_PER_ROUND_TRIP) {
            let mut pipeline = Pipeline::with_capacity(chunk.len() * 2);
            pipeline.ignore_errors();
            for tag in chunk {
                for bucket in self.layout().buckets_to_read(tag, now) {
                    pipeline.cmd("HDEL").arg(bucket).arg(&tag.field());
                }
            }
            let responses = link.query(&pipeline, chunk.len() * 2).await?;
            for response in responses {
                match response {
                    Ok(Value::Int(count)) => removed += count,
                    Ok(_) => {}
                    // A bucket changed to another type by a foreign client holds no tag.
                    Err(error) if error.code() == Some("WRONGTYPE") => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(removed)
    }
}
