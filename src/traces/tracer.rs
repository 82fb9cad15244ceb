//! Who gets a span, and where it goes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use opentelemetry_sdk::trace::SpanData;

use super::export::Queue;
use crate::config::TraceSettings;

/// Most messages and events a second that have spans although their sender records none: where everything fails, a sample tells as much.
const UNASKED: u64 = 100;

/// What all that makes spans needs.
#[derive(Debug)]
pub(super) struct Tracer {
    pub(super) settings: TraceSettings,
    queue: Queue,
    unasked: Unasked,
}

/// How many spans nobody has asked for are made in this second.
#[derive(Debug)]
struct Unasked {
    began: Instant,
    /// Seconds since it began.
    second: AtomicU64,
    made: AtomicU64,
}

impl Unasked {
    /// May one more be made? Two that ask while a second begins may both be the first: one too many harms nobody.
    fn take(&self) -> bool {
        let second = self.began.elapsed().as_secs();
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.made.store(0, Ordering::Relaxed);
        }
        self.made.fetch_add(1, Ordering::Relaxed) < UNASKED
    }
}

impl Tracer {
    pub(super) fn new(settings: TraceSettings, queue: Queue) -> Self {
        let unasked =
            Unasked { began: Instant::now(), second: AtomicU64::default(), made: AtomicU64::default() };
        Self { settings, queue, unasked }
    }

    pub(super) fn push(&self, span: SpanData) {
        self.queue.push(span);
    }

    /// Does a message or an event have a span? `sampled`: what its sender said; `unusual`: it failed, or was slow.
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
        let unasked = Unasked { began: earlier, second: AtomicU64::default(), made: AtomicU64::default() };
        let made = (0..UNASKED * 3).filter(|_| unasked.take()).count();
        // A second may begin meanwhile.
        assert!((100..=200).contains(&made), "{made}");
        unasked.second.store(u64::MAX, Ordering::Relaxed);
        assert!(unasked.take(), "another second has begun");
    }
}
