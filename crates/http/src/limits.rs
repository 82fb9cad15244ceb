//! Limits of concurrent requests and their bytes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Default limit of request bytes, unless twice the longest request is more.
const DEFAULT_MAX_BYTES: usize = 64 * 1_048_576;
const MAX_REQUESTS: usize = 1_000_000;
const MAX_READ_LIMIT: Duration = Duration::from_secs(600);
/// Interval of log lines about refused requests.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Limits of concurrent requests and of the time that a body may take to arrive.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestLimits {
    pub(super) requests: usize,
    pub(super) bytes: Option<usize>,
    pub(super) read_limit: Duration,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { requests: 1_000, bytes: None, read_limit: Duration::from_secs(30) }
    }
}

impl RequestLimits {
    /// Returns the maximum number of request bytes: as set, or else [`DEFAULT_MAX_BYTES`], or twice the longest request if that is more.
    fn max_bytes(&self, max_request: usize) -> usize {
        self.bytes.unwrap_or_else(|| DEFAULT_MAX_BYTES.max(max_request.saturating_mul(2)))
    }

    /// Reports limits that are out of range through `require`. `max_request`: the maximum size of a request in bytes.
    pub(super) fn check(&self, max_request: usize, require: &mut impl FnMut(bool, &str)) {
        require((1..=MAX_REQUESTS).contains(&self.requests), "max_at_work: 1 to 1,000,000 requests");
        require(
            self.max_bytes(max_request) >= max_request,
            "max_bytes_at_work: as many as max_request at least",
        );
        require(
            !self.read_limit.is_zero() && self.read_limit <= MAX_READ_LIMIT,
            "read_limit: more than nothing, and 10 minutes at most",
        );
    }
}

/// Permits of a layer, shared by its requests.
#[derive(Clone)]
pub(super) struct RequestLimiter {
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    refusal_log: Arc<Mutex<RefusalLog>>,
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
    permit: Option<OwnedSemaphorePermit>,
    semaphore: Arc<Semaphore>,
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
            refusal_log: Arc::default(),
        }
    }

    /// Begins the count of the received bytes of a body, at zero.
    pub(super) fn begin_body(&self) -> ReceivedBytes {
        ReceivedBytes::new(Arc::clone(&self.bytes))
    }

    /// Takes a permit for a complete request; `None` if the limit is reached.
    pub(super) fn enter(&self, bytes: ReceivedBytes) -> Option<RequestPermit> {
        let request = Arc::clone(&self.requests).try_acquire_owned().ok()?;
        Some(RequestPermit { _request: request, _bytes: bytes })
    }

    /// Counts a refused request. Returns the number since the last log line; `None` if [`LOG_INTERVAL`] has not passed since then.
    pub(super) fn count_refusal(&self, now: Instant) -> Option<u64> {
        // Every change leaves it consistent.
        let mut log = self.refusal_log.lock().unwrap_or_else(PoisonError::into_inner);
        log.count += 1;
        let is_due = log.logged_at.is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL);
        is_due.then(|| {
            log.logged_at = Some(now);
            std::mem::take(&mut log.count)
        })
    }
}

impl ReceivedBytes {
    /// Creates an empty count.
    #[doc(hidden)]
    pub fn new(semaphore: Arc<Semaphore>) -> Self {
        Self { permit: None, semaphore }
    }

    /// Counts bytes that are about to be allocated for the body; returns false if the limit is reached. An announced length counts nothing,
    /// so that a client that announces much and sends nothing blocks no other.
    #[doc(hidden)]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let Ok(bytes) = u32::try_from(bytes) else { return false };
        let Ok(more) = Arc::clone(&self.semaphore).try_acquire_many_owned(bytes) else { return false };
        match &mut self.permit {
            Some(permit) => permit.merge(more),
            permit => *permit = Some(more),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_once_in_a_while_and_counted() {
        let limiter = RequestLimiter::new(&RequestLimits::default(), 1);
        let began = Instant::now();
        let counts: Vec<_> =
            (0..25).map(|second| limiter.count_refusal(began + Duration::from_secs(second))).collect();
        let counts: Vec<_> =
            counts.into_iter().enumerate().filter_map(|(at, count)| Some((at, count?))).collect();
        assert_eq!(counts, [(0, 1), (10, 10), (20, 10)]);
    }
}
