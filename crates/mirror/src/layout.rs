//! The position of a tag: a field of a hash bucket of a time window. Pure.
//!
//! A plain key with a TTL costs 113 bytes, a field of a small hash 21 (measured with one million keys: eight bytes of name, eight of
//! value). So tags are fields of hashes that stay below Redis's listpack limit, and the TTL is the hash's. A window lasts half the TTL; an
//! entry lives until the end of the window after its own, so reading two windows finds all.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::Tag;

/// The distribution of tags over buckets. If worker and relay differ, look-ups miss and nothing else happens, because the names hold both
/// numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Beginning of all names. 2 is the format with evidence: entries of other formats are never read.
    prefix: String,
    window: Duration,
    buckets: u32,
}

impl Layout {
    /// `slot_key` is the part of all names that decides about their slot in a cluster; empty without one.
    pub(crate) fn new(ttl: Duration, buckets: u32, slot_key: &str) -> Self {
        let prefix = match slot_key {
            "" => "oncely:2".to_owned(),
            slot_key => format!("oncely:2:{slot_key}"),
        };
        Self { prefix, window: (ttl / 2).max(Duration::from_millis(1)), buckets: buckets.max(1) }
    }

    fn window_millis(&self) -> i64 {
        i64::try_from(self.window.as_millis()).unwrap_or(i64::MAX).max(1)
    }

    /// Returns the number of the window at a time.
    fn window_of(&self, now: DateTime<Utc>) -> i64 {
        now.timestamp_millis().div_euclid(self.window_millis())
    }

    /// Returns the bucket's name for a window.
    fn bucket_name(&self, tag: &Tag, window: i64) -> String {
        let bucket = tag.bucket_part() % self.buckets;
        format!("{}:{}:{}:{window}:{bucket:x}", self.prefix, self.window_millis(), self.buckets)
    }

    /// Returns the bucket to write to now.
    pub(crate) fn bucket_to_write(&self, tag: &Tag, now: DateTime<Utc>) -> String {
        self.bucket_name(tag, self.window_of(now))
    }

    /// Returns the buckets that may hold the tag now: this window's and the previous one's.
    pub(crate) fn buckets_to_read(&self, tag: &Tag, now: DateTime<Utc>) -> [String; 2] {
        let window = self.window_of(now);
        [self.bucket_name(tag, window), self.bucket_name(tag, window - 1)]
    }

    /// Returns the time at which an entry written now expires.
    pub(crate) fn expires_at(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        let end = (self.window_of(now) + 2).saturating_mul(self.window_millis());
        DateTime::from_timestamp_millis(end).unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(millis).unwrap()
    }

    #[test]
    fn an_entry_is_found_as_long_as_it_lives_and_lives_no_longer_than_the_ttl() {
        let layout = Layout::new(Duration::from_secs(60), 8, "");
        let tag = Tag([9; 16]);
        for written in [0, 1, 29_999, 30_000, 1_000_000] {
            let bucket = layout.bucket_to_write(&tag, at(written));
            let end = layout.expires_at(at(written)).timestamp_millis();
            let life = end - written;
            assert!((30_000..=60_000).contains(&life), "{life}");
            for read in [written, written + 1, written + 29_999, end - 1] {
                assert!(
                    layout.buckets_to_read(&tag, at(read)).contains(&bucket),
                    "written {written}, read {read}"
                );
            }
        }
    }

    #[test]
    fn other_settings_use_other_names() {
        let tag = Tag([9; 16]);
        let name = |ttl, buckets, slot_key| {
            Layout::new(Duration::from_secs(ttl), buckets, slot_key).bucket_to_write(&tag, at(0))
        };
        assert_ne!(name(60, 8, ""), name(120, 8, ""));
        assert_ne!(name(60, 8, ""), name(60, 16, ""));
        assert_eq!(name(60, 8, ""), "oncely:2:30000:8:0:1");
        assert_eq!(name(60, 8, "{main}"), "oncely:2:{main}:30000:8:0:1");
    }
}
