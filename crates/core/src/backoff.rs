//! Growing pauses.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};

/// Pauses that double from 100 ms to 10 s, with jitter, so that many processes do not retry at the same moment.
#[derive(Debug)]
pub struct Backoff(ExponentialBackoff);

const MAX_DELAY: Duration = Duration::from_secs(10);

/// Builds the policy of pauses, with a short first one.
fn build_backoff() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(MAX_DELAY)
        .with_jitter()
        .without_max_times()
        .build()
}

impl Default for Backoff {
    fn default() -> Self {
        Self(build_backoff())
    }
}

impl Backoff {
    /// Returns the next pause.
    pub fn next_pause(&mut self) -> Duration {
        self.0.next().unwrap_or(MAX_DELAY)
    }

    /// Makes the next pause short again, after a success.
    pub fn reset(&mut self) {
        self.0 = build_backoff();
    }
}
