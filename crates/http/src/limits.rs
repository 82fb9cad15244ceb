//! Limits of concurrent requests and their bytes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Default limit of request bytes, unless twice the longest request is more.
const BYTES: usize = 64 * 1_048_576;
const MOST_REQUESTS: usize = 1_000_000;
const LONGEST_READ: Duration = Duration::from_secs(600);
/// Interval of log lines about refused requests.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Limits of concurrent requests and of the time that a body may take to arrive.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestLimits {
    pub(super) requests: usize,
    pub(super) bytes: Option<usize>,
    pub(super) read: Duration,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { requests: 1_000, bytes: None, read: Duration::from_secs(30) }
    }
}

impl RequestLimits {
    /// Returns the maximum number of request bytes: as set, or else [`BYTES`], or twice the longest request if that is more.
    fn max_bytes(&self, max_request: usize) -> usize {
        self.bytes.unwrap_or_else(|| BYTES.max(max_request.saturating_mul(2)))
    }

    /// Reports limits that are out of range through `require`. `max_request`: the maximum size of a request in bytes.
    pub(super) fn check(&self, max_request: usize, require: &mut impl FnMut(bool, &str)) {
        require((1..=MOST_REQUESTS).contains(&self.requests), "max_at_work: 1 to 1,000,000 requests");
        require(
            self.max_bytes(max_request) >= max_request,
            "max_bytes_at_work: as many as max_request at least",
        );
        require(
            !self.read.is_zero() && self.read <= LONGEST_READ,
            "read_limit: more than nothing, and 10 minutes at most",
        );
    }
}

/// Permits of a layer, shared by its requests.
#[derive(Clone)]
pub(super) struct RequestLimiter {
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    refused: Arc<Mutex<RefusalLog>>,
}

/// Refused requests since the last log line.
#[derive(Default)]
struct RefusalLog {
    logged_at: Option<Instant>,
    count: u64,
}

/// The received bytes of a body, counted until this is dropped. It takes no permit of a request before the body is complete: a client that
/// announces a body and sends nothing blocks no other.
pub struct ReceivedBytes {
    held: Option<OwnedSemaphorePermit>,
    of: Arc<Semaphore>,
}

/// Permits of a complete request and its bytes, until this is dropped.
pub(super) struct RequestPermit {
    _request: OwnedSemaphorePermit,
    _bytes: ReceivedBytes,
}

impl RequestLimiter {
    pub(super) fn new(limits: &RequestLimits, max_request: usize) -> Self {
        let bytes = limits.max_bytes(max_request).min(Semaphore::MAX_PERMITS);
        Self {
            requests: Arc::new(Semaphore::new(limits.requests)),
            bytes: Arc::new(Semaphore::new(bytes)),
            refused: Arc::default(),
        }
    }

    /// Begins to count a body.
    pub(super) fn arriving(&self) -> ReceivedBytes {
        ReceivedBytes::new(Arc::clone(&self.bytes))
    }

    /// Takes a permit for a complete request; `None` if the limit is reached.
    pub(super) fn enter(&self, bytes: ReceivedBytes) -> Option<RequestPermit> {
        let request = Arc::clone(&self.requests).try_acquire_owned().ok()?;
        Some(RequestPermit { _request: request, _bytes: bytes })
    }

    /// Counts a refused request; returns the number since the last log line when the next one is due.
    pub(super) fn count_refusal(&self, now: Instant) -> Option<u64> {
        // Every change leaves it consistent.
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.count += 1;
        let is_time = refused.logged_at.is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL);
        is_time.then(|| {
            refused.logged_at = Some(now);
            std::mem::take(&mut refused.count)
        })
    }
}

impl ReceivedBytes {
    /// Creates an empty count.
    #[doc(hidden)]
    pub fn new(bytes: Arc<Semaphore>) -> Self {
        Self { held: None, of: bytes }
    }

    /// Counts bytes that are about to be allocated for the body; returns false if the limit is reached. An announced length counts nothing,
    /// so that a client that announces much and sends nothing blocks no other.
    #[doc(hidden)]
    pub fn grow(&mut self, bytes: usize) -> bool {
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
        let at_work = RequestLimiter::new(&RequestLimits::default(), 1);
        let began = Instant::now();
        let told: Vec<_> =
            (0..25).map(|second| at_work.count_refusal(began + Duration::from_secs(second))).collect();
        let told: Vec<_> =
            told.into_iter().enumerate().filter_map(|(at, count)| Some((at, count?))).collect();
        assert_eq!(told, [(0, 1), (10, 10), (20, 10)]);
    }
}
