//! Until when a lease is believed without a question.

use std::time::{Duration, Instant, SystemTime};

/// Kept clear of the end of a lease: what begins by our clocks must not be over by the server's.
const MARGIN: Duration = Duration::from_secs(3);

/// Until when a lease is believed without a question: by two clocks, because one of them stands still while a machine is suspended, and the
/// other one may be set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Belief {
    since: Instant,
    at: SystemTime,
}

impl Belief {
    /// From when the question left: the server's answer counts from later on.
    pub(crate) fn now() -> Self {
        Self { since: Instant::now(), at: SystemTime::now() }
    }

    pub(crate) fn since((since, at): (Instant, SystemTime)) -> Self {
        Self { since, at }
    }

    pub(crate) fn holds(&self, lease: Duration) -> bool {
        let time = lease.saturating_sub(MARGIN).max(lease / 2);
        self.since.elapsed() < time && self.at.elapsed().is_ok_and(|elapsed| elapsed < time)
    }
}
