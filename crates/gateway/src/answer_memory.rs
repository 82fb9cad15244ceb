//! Memory limit for answers to requests with a key, which are held until they are sent.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;

use oncely_http::ReceivedBytes;

/// Default limit of answer bytes, unless twice the longest answer is more.
const BYTES: usize = 48 << 20;
/// Maximum size in bytes of a body that is stored. Up to it four times the size is counted, for the two copies as JSON text, in the step
/// and in the key.
const STORED: usize = 48 << 10;

/// Memory for answers.
pub(super) struct AnswerMemory {
    /// Maximum size in bytes of a held body.
    most: usize,
    bytes: Arc<Semaphore>,
}

/// An answer's body while it is read. Its bytes are counted until they are dropped.
pub(super) struct BufferedBody {
    most: usize,
    bytes: Vec<u8>,
    counted: ReceivedBytes,
}

impl AnswerMemory {
    pub(super) fn new(most: usize) -> Self {
        let bytes = BYTES.max(most.saturating_mul(2)).min(Semaphore::MAX_PERMITS);
        Self { most, bytes: Arc::new(Semaphore::new(bytes)) }
    }

    /// Begins to hold an answer.
    pub(super) fn answer(&self) -> BufferedBody {
        BufferedBody {
            most: self.most,
            bytes: Vec::new(),
            counted: ReceivedBytes::new(Arc::clone(&self.bytes)),
        }
    }
}

/// Returns the bytes counted for a buffer of this capacity.
fn cost(capacity: usize) -> usize {
    capacity.max(capacity.min(STORED).saturating_mul(4))
}

impl BufferedBody {
    /// Appends a part of the body. Returns false, without a change, if the body would exceed the maximum or the memory limit.
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

impl AsRef<[u8]> for BufferedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_counted_until_the_last_of_its_bytes_is_dropped() {
        let room = AnswerMemory::new(1 << 20);
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
        let room = AnswerMemory::new(1 << 20);
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
