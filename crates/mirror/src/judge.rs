//! Examines the entries found in Redis at the places of tags.

use chrono::{DateTime, Utc};
use redis::{Pipeline, Value};

use super::client::{Mirror, is_hit};
use super::error::MirrorError;
use super::tag::{Tag, TagKey};

/// The entry found at a tag's place.
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
const CHUNK: usize = 200;

impl Mirror {
    /// Examines the place of each tag. For operator commands: with a long timeout, and without the breaker.
    pub async fn judge(
        &self,
        key: &TagKey,
        tags: &[Tag],
        now: DateTime<Utc>,
    ) -> Result<Vec<MirrorEntry>, MirrorError> {
        let mut link = self.connect().await?;
        let mut found = Vec::with_capacity(tags.len());
        for chunk in tags.chunks(CHUNK) {
            let mut pipeline = Pipeline::with_capacity(chunk.len() * 2);
            pipeline.ignore_errors();
            let buckets: Vec<[String; 2]> =
                chunk.iter().map(|tag| self.layout().read_from(tag, now)).collect();
            for (tag, buckets) in chunk.iter().zip(&buckets) {
                for bucket in buckets {
                    pipeline.cmd("HGET").arg(bucket).arg(&tag.field());
                }
            }
            let answers = link.answers(&pipeline, chunk.len() * 2).await?;
            for ((tag, buckets), pair) in chunk.iter().zip(&buckets).zip(answers.chunks(2)) {
                let is_there =
                    pair.iter().zip(buckets).any(|(answer, bucket)| is_hit(key, tag, bucket, answer));
                let is_empty = pair.iter().all(|answer| matches!(answer, Ok(Value::Nil)));
                found.push(match (is_there, is_empty) {
                    (true, _) => MirrorEntry::Present,
                    (false, true) => MirrorEntry::Missing,
                    (false, false) => MirrorEntry::Foreign,
                });
            }
        }
        Ok(found)
    }
}
