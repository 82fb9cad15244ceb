//! A primary with its log, a standby that has a prefix of it, Redis, relays, and a worker that asks.

use oncely_core::decide::{KeyRecord, KeyStatus};

/// What a transaction did, in the order of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Written {
    /// A key took effect, with a mirror record of this number.
    Key { key: u8, id: u8, epoch: u8 },
    /// A relay deleted the key's mirror record.
    Relayed(u8),
    /// The garbage collection deleted the key.
    Collected(u8),
}

/// A key, as the log tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    pub done: bool,
    /// Its mirror record is there.
    pub pending: bool,
    pub id: u8,
    pub epoch: u8,
    pub effects: u8,
}

impl Row {
    pub fn of(log: &[Written], wanted: u8) -> Self {
        log.iter().fold(Self::default(), |row, written| match *written {
            Written::Key { key, id, epoch } if key == wanted => {
                Self { done: true, pending: true, id, epoch, effects: row.effects + 1 }
            }
            Written::Relayed(key) if key == wanted => Self { pending: false, ..row },
            Written::Collected(key) if key == wanted => Self { done: false, ..row },
            _ => row,
        })
    }

    /// As the look-up returns it.
    pub fn record(self) -> Option<KeyRecord> {
        self.done.then_some(KeyRecord {
            status: KeyStatus::Completed,
            fingerprint: None,
            attempts: 1,
            crash_attempts: 0,
            reason: None,
            last_error: None,
            error_code: None,
            not_before: None,
            is_running: false,
            is_leased: false,
        })
    }
}

/// A relay with one record at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Relay {
    Idle,
    /// Its transaction holds the record.
    Took {
        key: u8,
        epoch: u8,
    },
    /// The tag is in Redis, the record is not deleted yet.
    Wrote {
        key: u8,
    },
    /// The record is deleted, the tag not written: only a relay that does it the wrong way round.
    Deleted {
        key: u8,
        epoch: u8,
    },
}

impl Relay {
    pub fn holds(self, wanted: u8) -> bool {
        matches!(self, Self::Took { key, .. } | Self::Wrote { key } if key == wanted)
    }
}

/// What stands under a tag: for which entry it was made, by whom has the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Proof {
    pub epoch: u8,
    pub key: u8,
    /// The time of the bucket that it was made for is over.
    pub is_over: bool,
}

impl Proof {
    pub fn is_of(self, entry: &Entry) -> bool {
        (self.epoch, self.key) == (entry.epoch, entry.key)
    }
}

/// In Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    pub epoch: u8,
    pub key: u8,
    /// `None`: something that somebody made up.
    pub proof: Option<Proof>,
}

/// What the database said of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Standing {
    pub epoch: u8,
    pub may_lose_commits: bool,
    pub is_fresh: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Counts failovers: the epoch of what is written now.
    pub timeline: u8,
    pub is_up: bool,
    pub log: Vec<Written>,
    /// How much of the log readers see: all but what waits for a synchronous standby.
    pub visible: usize,
    /// How much of it the standby has flushed.
    pub flushed: usize,
    pub is_standby_connected: bool,
    /// Transactions that have taken their mirror record's number: key and number.
    pub open: Vec<(u8, u8)>,
    pub next_id: u8,
    /// Past their retention, by key.
    pub is_past: Vec<bool>,
    /// Sorted.
    pub redis: Vec<Entry>,
    /// Tags, epoch and key, that the stranger has seen: he watches all that goes to Redis.
    pub seen_tags: Vec<(u8, u8)>,
    /// Values that he has seen.
    pub seen_proofs: Vec<Proof>,
    /// How often he still writes.
    pub forgeries: u8,
    pub relays: Vec<Relay>,
    /// Highest number relayed: only a relay that goes by it.
    pub cursor: u8,
    pub standing: Option<Standing>,
    /// How often each message still comes.
    pub deliveries: Vec<u8>,
    pub failovers: u8,
    pub relay_crashes: u8,
    pub evictions: u8,
    /// A message was acknowledged on a hit.
    pub hit: bool,
    /// … and its key is not done in the history that goes on.
    pub false_hit: bool,
    pub collected_pending: bool,
    pub deleted_unwritten: bool,
}

impl State {
    /// The stranger sees a question or an answer. Without one nobody looks.
    pub fn shown(&mut self, epoch: u8, key: u8, proof: Option<Proof>) {
        if self.forgeries == 0 {
            return;
        }
        if !self.seen_tags.contains(&(epoch, key)) {
            self.seen_tags.push((epoch, key));
            self.seen_tags.sort_unstable();
        }
        if let Some(proof) = proof.filter(|proof| !self.seen_proofs.contains(proof)) {
            self.seen_proofs.push(proof);
            self.seen_proofs.sort_unstable();
        }
    }

    /// One value a tag.
    pub fn put(&mut self, entry: Entry) {
        self.redis.retain(|old| (old.epoch, old.key) != (entry.epoch, entry.key));
        self.redis.push(entry);
        self.redis.sort_unstable();
    }

    pub fn row(&self, key: u8) -> Row {
        Row::of(&self.log[..self.visible], key)
    }
}
