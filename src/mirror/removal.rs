//! Takes tags out of Redis.

use chrono::{DateTime, Utc};
use redis::{Pipeline, Value};

use super::client::Mirror;
use super::error::MirrorError;
use super::tag::Tag;

/// Tags of one round trip.
const CHUNK: usize = 200;

impl Mirror {
    /// Removes tags, those that are there; returns how many were. For a person who asks: patient, and without the breaker.
    pub(crate) async fn remove(&self, tags: &[Tag], now: DateTime<Utc>) -> Result<i64, MirrorError> {
        if tags.is_empty() {
            return Ok(0);
        }
        let mut link = self.connect().await?;
        let mut removed = 0;
        for chunk in tags.chunks(CHUNK) {
            let mut pipeline = Pipeline::with_capacity(chunk.len() * 2);
            pipeline.ignore_errors();
            for tag in chunk {
                for bucket in self.layout().read_from(tag, now) {
                    pipeline.cmd("HDEL").arg(bucket).arg(&tag.field());
                }
            }
            let answers = link.answers(&pipeline, chunk.len() * 2).await?;
            for answer in answers {
                match answer {
                    Ok(Value::Int(count)) => removed += count,
                    Ok(_) => {}
                    // A bucket that somebody made another type holds no tag.
                    Err(error) if error.code() == Some("WRONGTYPE") => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(removed)
    }
}
