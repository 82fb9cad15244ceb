//! How much may be at work at once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of requests, where nobody says it and they are smaller than half of it.
const BYTES: usize = 64 * 1_048_576;
const MOST_REQUESTS: usize = 1_000_000;
const LONGEST_READ: Duration = Duration::from_secs(600);
/// Between two lines of the log about requests that are refused.
const TOLD: Duration = Duration::from_secs(10);

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
    refused: Arc<Mutex<Refused>>,
}

/// Requests that are refused, of which the log tells now and then.
#[derive(Default)]
struct Refused {
    told: Option<Instant>,
    since: u64,
}

/// The bytes of a body that are here, until it is dropped. Before the body is whole it is no place: a client that announces a body and sends
/// none of it keeps nobody out.
pub(crate) struct Arrived {
    held: Option<OwnedSemaphorePermit>,
    of: Arc<Semaphore>,
}

/// The place of a whole request, and its bytes, until it is dropped.
pub(super) struct Share {
    _request: OwnedSemaphorePermit,
    _bytes: Arrived,
}

impl AtWork {
    pub(super) fn new(limits: &Limits, max_request: usize) -> Self {
        let bytes = limits.bytes(max_request).min(Semaphore::MAX_PERMITS);
        Self {
            requests: Arc::new(Semaphore::new(limits.requests)),
            bytes: Arc::new(Semaphore::new(bytes)),
            refused: Arc::default(),
        }
    }

    /// For a body of which nothing is here yet.
    pub(super) fn arriving(&self) -> Arrived {
        Arrived::of(Arc::clone(&self.bytes))
    }

    /// A place for a request that is whole; `None` where too many are at work.
    pub(super) fn enter(&self, bytes: Arrived) -> Option<Share> {
        let request = Arc::clone(&self.requests).try_acquire_owned().ok()?;
        Some(Share { _request: request, _bytes: bytes })
    }

    /// Counts a request that is refused for what is at work; how many there were since it was told last, where it is time to tell.
    pub(super) fn refuse(&self, now: Instant) -> Option<u64> {
        // Every change leaves it whole.
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.since += 1;
        let is_time = refused.told.is_none_or(|told| now.duration_since(told) >= TOLD);
        is_time.then(|| {
            refused.told = Some(now);
            std::mem::take(&mut refused.since)
        })
    }
}

impl Arrived {
    /// None of these bytes yet.
    pub(crate) fn of(bytes: Arc<Semaphore>) -> Self {
        Self { held: None, of: bytes }
    }

    /// Counts bytes that are about to be allocated for the body; false where there is no room for them. What is announced costs nothing: a
    /// client that announces much and sends nothing keeps nobody out.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let Ok(bytes) = u32::try_from(bytes) else { return false };
        let Ok(more) = Arc::clone(&self.of).try_acquire_many_owned(bytes) else { return false };
        match &mut self.held {
            Some(held) => held.merge(more),
            held => *held = Some(more),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_once_in_a_while_and_counted() {
        let at_work = AtWork::new(&Limits::default(), 1);
        let began = Instant::now();
        let told: Vec<_> =
            (0..25).map(|second| at_work.refuse(began + Duration::from_secs(second))).collect();
        let told: Vec<_> =
            told.into_iter().enumerate().filter_map(|(at, count)| Some((at, count?))).collect();
        assert_eq!(told, [(0, 1), (10, 10), (20, 10)]);
    }
}
