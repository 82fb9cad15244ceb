//! Examines the entries of tags in Redis.

use chrono::{DateTime, Utc};
use redis::{Pipeline, Value};

use super::client::{Mirror, is_hit};
use super::error::MirrorError;
use super::tag::{Tag, TagKey};

/// The entry of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorEntry {
    /// The tag, with its evidence.
    Present,
    /// No entry.
    Missing,
    /// An entry not written with the tag key: other evidence, or another type. It is ignored.
    Foreign,
}

/// Number of tags looked up in one round trip.
const TAGS_PER_ROUND_TRIP: usize = 200;

impl Mirror {
    /// Examines the entry of each tag. For operator commands: with a long timeout, and without the breaker.
    pub async fn examine_entries(
        &self,
        key: &TagKey,
        tags: &[Tag],
        now: DateTime<Utc>,
    ) -> Result<Vec<MirrorEntry>, MirrorError> {
        let mut link = self.connect().await?;
        let mut entries = Vec::with_capacity(tags.len());
        for chunk in tags.chunks(TAGS_PER_ROUND_TRIP) {
            let mut pipeline = Pipeline::with_capacity(chunk.len() * 2);
            pipeline.ignore_errors();
            let buckets: Vec<[String; 2]> =
                chunk.iter().map(|tag| self.layout().buckets_to_read(tag, now)).collect();
            for (tag, buckets) in chunk.iter().zip(&buckets) {
                for bucket in buckets {
                    pipeline.cmd("HGET").arg(bucket).arg(&tag.field());
                }
            }
            let responses = link.query(&pipeline, chunk.len() * 2).await?;
            for ((tag, buckets), pair) in chunk.iter().zip(&buckets).zip(responses.chunks(2)) {
                let is_present =
                    pair.iter().zip(buckets).any(|(response, bucket)| is_hit(key, tag, bucket, response));
                let is_empty = pair.iter().all(|response| matches!(response, Ok(Value::Nil)));
                entries.push(match (is_present, is_empty) {
                    (true, _) => MirrorEntry::Present,
                    (false, true) => MirrorEntry::Missing,
                    (false, false) => MirrorEntry::Foreign,
                });
            }
        }
        Ok(entries)
    }
}
