//! Selection of spans, and their queue.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use opentelemetry_sdk::trace::SpanData;

use super::export::SpanQueue;
use oncely_config::TraceSettings;

/// Limit per second of messages and events that get spans although their sender records none: when everything fails, a sample is enough.
const MAX_UNREQUESTED_PER_SECOND: u64 = 100;

/// Common data of all creators of spans.
#[derive(Debug)]
pub(super) struct Tracer {
    pub(super) settings: TraceSettings,
    queue: SpanQueue,
    unrequested: UnrequestedSpans,
}

/// Number of spans in this second that no sender requested.
#[derive(Debug)]
struct UnrequestedSpans {
    began: Instant,
    /// Seconds since `began`.
    second: AtomicU64,
    count: AtomicU64,
}

impl UnrequestedSpans {
    /// Counts one span; returns false if the limit is reached. Two callers at the beginning of a second may both be the first: one span
    /// too many does no harm.
    fn try_count(&self) -> bool {
        let second = self.began.elapsed().as_secs();
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.count.store(0, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed) < MAX_UNREQUESTED_PER_SECOND
    }
}

impl Tracer {
    /// Starts the count of spans that no sender requested; spans go to `queue`.
    pub(super) fn start(settings: TraceSettings, queue: SpanQueue) -> Self {
        let unrequested = UnrequestedSpans {
            began: Instant::now(),
            second: AtomicU64::default(),
            count: AtomicU64::default(),
        };
        Self { settings, queue, unrequested }
    }

    pub(super) fn push(&self, span: SpanData) {
        self.queue.push(span);
    }

    /// Returns whether a message or an event gets a span. `is_sampled`: the sender's decision; `is_unusual`: it failed, or was slow. Counts
    /// a span that no sender requested, and counts one as lost if the queue has no room for it.
    pub(super) fn select(&self, is_sampled: Option<bool>, is_unusual: impl FnOnce() -> bool) -> bool {
        let is_requested = match is_sampled {
            Some(is_sampled) => is_sampled,
            None => self.settings.sample > 0.0 && fastrand::f64() < self.settings.sample,
        };
        (is_requested || is_unusual() && self.unrequested.try_count()) && self.queue.check_room()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn spans_that_nobody_asked_for_are_few_each_second() {
        let earlier = Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
        let unrequested =
            UnrequestedSpans { began: earlier, second: AtomicU64::default(), count: AtomicU64::default() };
        let made = (0..MAX_UNREQUESTED_PER_SECOND * 3).filter(|_| unrequested.try_count()).count();
        // A second may begin meanwhile.
        assert!((100..=200).contains(&made), "{made}");
        unrequested.second.store(u64::MAX, Ordering::Relaxed);
        assert!(unrequested.try_count(), "another second has begun");
    }
}
