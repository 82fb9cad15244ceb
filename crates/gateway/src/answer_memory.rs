//! Memory limit for answers to requests with a key, which are held until they are sent.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;

use oncely_http::ReceivedBytes;

/// Default limit of answer bytes, unless twice the longest answer is more.
const DEFAULT_MAX_BYTES: usize = 48 << 20;
/// Maximum size in bytes of a body that is stored. Up to it four times the size is counted, for the two copies as JSON text, in the step
/// and in the key.
const MAX_STORED_BODY: usize = 48 << 10;

/// Memory limit for answers.
pub(super) struct AnswerMemory {
    /// Maximum size in bytes of a held body.
    max_bytes: usize,
    bytes: Arc<Semaphore>,
}

/// An answer's body while it is read. Its bytes are counted until they are dropped.
pub(super) struct BufferedBody {
    max_bytes: usize,
    bytes: Vec<u8>,
    received: ReceivedBytes,
}

impl AnswerMemory {
    pub(super) fn new(max_bytes: usize) -> Self {
        let bytes = DEFAULT_MAX_BYTES.max(max_bytes.saturating_mul(2)).min(Semaphore::MAX_PERMITS);
        Self { max_bytes, bytes: Arc::new(Semaphore::new(bytes)) }
    }

    /// Begins the buffer of an answer's body, empty; its bytes are counted in this memory.
    pub(super) fn begin_body(&self) -> BufferedBody {
        BufferedBody {
            max_bytes: self.max_bytes,
            bytes: Vec::new(),
            received: ReceivedBytes::new(Arc::clone(&self.bytes)),
        }
    }
}

/// Returns the number of bytes that count for a buffer of this capacity.
fn cost(capacity: usize) -> usize {
    capacity.max(capacity.min(MAX_STORED_BODY).saturating_mul(4))
}

impl BufferedBody {
    /// Appends a part of the body. Returns false, without a change, if the body would exceed the maximum or the memory limit.
    pub(super) fn push(&mut self, data: &[u8]) -> bool {
        let needed = self.bytes.len().saturating_add(data.len());
        if needed > self.max_bytes {
            return false;
        }
        let capacity = self.bytes.capacity();
        if needed > capacity {
            let grown = needed.max(capacity.saturating_mul(2).min(self.max_bytes));
            if !self.received.grow(cost(grown) - cost(capacity)) {
                return false;
            }
            self.bytes.reserve_exact(grown - self.bytes.len());
        }
        self.bytes.extend_from_slice(data);
        true
    }

    pub(super) fn into_bytes(self) -> Bytes {
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
        let memory = AnswerMemory::new(1 << 20);
        let all = memory.bytes.available_permits();
        let mut body = memory.begin_body();
        assert!(body.push(&[7; 10]));
        assert_eq!(all - memory.bytes.available_permits(), 40, "and what is stored of it");
        assert!(body.push(&[8; 600_000]));
        assert!(!body.push(&[9; 600_000]), "longer than what is held");
        let bytes = body.into_bytes();
        assert_eq!(bytes.len(), 600_010);
        let part = bytes.slice(20..30);
        drop(bytes);
        assert_eq!(all - memory.bytes.available_permits(), 600_010);
        drop(part);
        assert_eq!(memory.bytes.available_permits(), all);
    }

    #[test]
    fn where_there_is_no_room_nothing_is_held() {
        let memory = AnswerMemory::new(1 << 20);
        let mut bodies = Vec::new();
        loop {
            let mut body = memory.begin_body();
            if !body.push(&vec![0; 1 << 20]) {
                assert_eq!(body.into_bytes().len(), 0);
                break;
            }
            bodies.push(body);
        }
        assert_eq!(bodies.len(), DEFAULT_MAX_BYTES >> 20);
        bodies.pop();
        assert!(memory.begin_body().push(&[0; 1 << 20]));
    }
}
