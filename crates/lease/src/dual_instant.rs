//! The time until which a lease counts as held without asking the store.

use std::time::{Duration, Instant, SystemTime};

/// Margin before the end of a lease: work begun by this process's clocks must not fall after the end by the server's.
const MARGIN: Duration = Duration::from_secs(3);

/// The time until which a lease counts as held without asking the store. Measured by two clocks: one stands still while the machine is
/// suspended, the other may be set.
#[derive(Clone, Copy, Debug)]
pub struct DualInstant {
    since: Instant,
    at: SystemTime,
}

impl DualInstant {
    /// Counts from when the request was sent: the server counts from later.
    #[doc(hidden)]
    pub fn now() -> Self {
        Self { since: Instant::now(), at: SystemTime::now() }
    }

    #[doc(hidden)]
    pub fn since((since, at): (Instant, SystemTime)) -> Self {
        Self { since, at }
    }

    #[doc(hidden)]
    pub fn holds(&self, lease: Duration) -> bool {
        let time = lease.saturating_sub(MARGIN).max(lease / 2);
        self.since.elapsed() < time && self.at.elapsed().is_ok_and(|elapsed| elapsed < time)
    }
}
