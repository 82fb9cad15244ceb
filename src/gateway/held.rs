//! Answers to requests with a key, held until they are sent: how much memory all of them may take.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::http::Arrived;

/// Bytes of answers, where they are smaller than half of it.
const BYTES: usize = 48 << 20;
/// Longest body that is stored, in bytes. Up to it three more times as much is counted: what is stored with the step, and with the key, is
/// text in JSON.
const STORED: usize = 48 << 10;

/// The memory for answers.
pub(super) struct Room {
    /// Longest body that is held, in bytes.
    most: usize,
    bytes: Arc<Semaphore>,
}

/// An answer's body as it is read. Its bytes are counted until they are dropped.
pub(super) struct Held {
    most: usize,
    bytes: Vec<u8>,
    counted: Arrived,
}

impl Room {
    pub(super) fn new(most: usize) -> Self {
        let bytes = BYTES.max(most.saturating_mul(2)).min(Semaphore::MAX_PERMITS);
        Self { most, bytes: Arc::new(Semaphore::new(bytes)) }
    }

    /// For an answer of which nothing is here yet.
    pub(super) fn answer(&self) -> Held {
        Held { most: self.most, bytes: Vec::new(), counted: Arrived::of(Arc::clone(&self.bytes)) }
    }
}

/// What is counted of a body with a buffer of this size.
fn cost(capacity: usize) -> usize {
    capacity.max(capacity.min(STORED).saturating_mul(4))
}

impl Held {
    /// Appends a part of the body. False where it would be longer than what is held, or there is no room for it: then it is as it was.
    pub(super) fn push(&mut self, data: &[u8]) -> bool {
        let needed = self.bytes.len().saturating_add(data.len());
        if needed > self.most {
            return false;
        }
        let capacity = self.bytes.capacity();
        if needed > capacity {
            let grown = needed.max(capacity.saturating_mul(2).min(self.most));
            if !self.counted.grow(cost(grown) - cost(capacity)) {
                return false;
            }
            self.bytes.reserve_exact(grown - self.bytes.len());
        }
        self.bytes.extend_from_slice(data);
        true
    }

    pub(super) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_counted_until_the_last_of_its_bytes_is_dropped() {
        let room = Room::new(1 << 20);
        let all = room.bytes.available_permits();
        let mut held = room.answer();
        assert!(held.push(&[7; 10]));
        assert_eq!(all - room.bytes.available_permits(), 40, "and what is stored of it");
        assert!(held.push(&[8; 600_000]));
        assert!(!held.push(&[9; 600_000]), "longer than what is held");
        let bytes = held.freeze();
        assert_eq!(bytes.len(), 600_010);
        let part = bytes.slice(20..30);
        drop(bytes);
        assert_eq!(all - room.bytes.available_permits(), 600_010);
        drop(part);
        assert_eq!(room.bytes.available_permits(), all);
    }

    #[test]
    fn where_there_is_no_room_nothing_is_held() {
        let room = Room::new(1 << 20);
        let mut answers = Vec::new();
        loop {
            let mut held = room.answer();
            if !held.push(&vec![0; 1 << 20]) {
                assert_eq!(held.freeze().len(), 0);
                break;
            }
            answers.push(held);
        }
        assert_eq!(answers.len(), BYTES >> 20);
        answers.pop();
        assert!(room.answer().push(&[0; 1 << 20]));
    }
}
