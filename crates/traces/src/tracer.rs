//! Selection of spans, and their queue.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use opentelemetry_sdk::trace::SpanData;

use super::export::SpanQueue;
use oncely_config::TraceSettings;

/// Limit per second of messages and events that get spans although their sender records none: when everything fails, a sample is enough.
const UNASKED: u64 = 100;

/// Common data of all creators of spans.
#[derive(Debug)]
pub(super) struct Tracer {
    pub(super) settings: TraceSettings,
    queue: SpanQueue,
    unasked: UnrequestedSpans,
}

/// Number of spans in this second that no sender requested.
#[derive(Debug)]
struct UnrequestedSpans {
    began: Instant,
    /// Seconds since `began`.
    second: AtomicU64,
    made: AtomicU64,
}

impl UnrequestedSpans {
    /// Counts one span, if the limit is not reached. Two callers at the beginning of a second may both be the first: one span too many does
    /// no harm.
    fn take(&self) -> bool {
        let second = self.began.elapsed().as_secs();
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.made.store(0, Ordering::Relaxed);
        }
        self.made.fetch_add(1, Ordering::Relaxed) < UNASKED
    }
}

impl Tracer {
    pub(super) fn new(settings: TraceSettings, queue: SpanQueue) -> Self {
        let unasked = UnrequestedSpans {
            began: Instant::now(),
            second: AtomicU64::default(),
            made: AtomicU64::default(),
        };
        Self { settings, queue, unasked }
    }

    pub(super) fn push(&self, span: SpanData) {
        self.queue.push(span);
    }

    /// Returns whether a message or an event gets a span. `sampled`: the sender's decision; `unusual`: it failed, or was slow.
    pub(super) fn wants(&self, sampled: Option<bool>, unusual: impl FnOnce() -> bool) -> bool {
        let asked = match sampled {
            Some(sampled) => sampled,
            None => self.settings.sample > 0.0 && fastrand::f64() < self.settings.sample,
        };
        (asked || unusual() && self.unasked.take()) && self.queue.has_room()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn spans_that_nobody_asked_for_are_few_each_second() {
        let earlier = Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
        let unasked =
            UnrequestedSpans { began: earlier, second: AtomicU64::default(), made: AtomicU64::default() };
        let made = (0..UNASKED * 3).filter(|_| unasked.take()).count();
        // A second may begin meanwhile.
        assert!((100..=200).contains(&made), "{made}");
        unasked.second.store(u64::MAX, Ordering::Relaxed);
        assert!(unasked.take(), "another second has begun");
    }
}
