//! How much may be at work at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of requests, where nobody says it and they are smaller than half of it.
const BYTES: usize = 128 * 1_048_576;
const MOST_REQUESTS: usize = 1_000_000;
const LONGEST_READ: Duration = Duration::from_secs(600);

/// How much may be at work at once, and how long a request may take to arrive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) requests: usize,
    pub(super) bytes: Option<usize>,
    pub(super) read: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { requests: 1_000, bytes: None, read: Duration::from_secs(30) }
    }
}

impl Limits {
    fn bytes(&self, max_request: usize) -> usize {
        self.bytes.unwrap_or_else(|| BYTES.max(max_request.saturating_mul(2)))
    }

    pub(super) fn check(&self, max_request: usize, check: &mut impl FnMut(bool, &str)) {
        check((1..=MOST_REQUESTS).contains(&self.requests), "max_at_work: 1 to 1,000,000 requests");
        check(self.bytes(max_request) >= max_request, "max_bytes_at_work: as many as max_request at least");
        check(
            !self.read.is_zero() && self.read <= LONGEST_READ,
            "read_limit: more than nothing, and 10 minutes at most",
        );
    }
}

/// What a layer has at work.
#[derive(Clone)]
pub(super) struct AtWork {
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// A request's share of it, until it is dropped.
pub(super) struct Share {
    _request: OwnedSemaphorePermit,
    /// Those of its body that are here.
    held: Option<OwnedSemaphorePermit>,
    bytes: Arc<Semaphore>,
}

impl AtWork {
    pub(super) fn new(limits: &Limits, max_request: usize) -> Self {
        let bytes = limits.bytes(max_request).min(Semaphore::MAX_PERMITS);
        Self { requests: Arc::new(Semaphore::new(limits.requests)), bytes: Arc::new(Semaphore::new(bytes)) }
    }

    /// A share for a request of whose body nothing is here yet; `None` where there is too much at work.
    pub(super) fn enter(&self) -> Option<Share> {
        let request = Arc::clone(&self.requests).try_acquire_owned().ok()?;
        Some(Share { _request: request, held: None, bytes: Arc::clone(&self.bytes) })
    }
}

impl Share {
    /// So many more bytes of the body have come; false where there is no room for them. What is announced costs nothing: a client that
    /// announces much and sends nothing keeps nobody out.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let Ok(bytes) = u32::try_from(bytes) else { return false };
        let Ok(more) = Arc::clone(&self.bytes).try_acquire_many_owned(bytes) else { return false };
        match &mut self.held {
            Some(held) => held.merge(more),
            held => *held = Some(more),
        }
        true
    }
}
