//! A time by two clocks, by which a lease counts as held without asking the store.

use std::time::{Duration, Instant, SystemTime};

/// Margin before the end of a lease: work begun by this process's clocks must not fall after the end by the server's.
const LEASE_MARGIN: Duration = Duration::from_secs(3);

/// A time by two clocks: one stands still while the machine is suspended, the other may be set. A lease that was requested at this time
/// counts as held for a while without asking the store ([`DualInstant::holds`]).
#[derive(Clone, Copy, Debug)]
pub struct DualInstant {
    since: Instant,
    at: SystemTime,
}

impl DualInstant {
    /// Returns the present time by both clocks. Take it before the request is sent: the server counts from later.
    #[doc(hidden)]
    pub fn now() -> Self {
        Self { since: Instant::now(), at: SystemTime::now() }
    }

    /// Creates a time from readings of both clocks.
    #[doc(hidden)]
    pub fn from_times((since, at): (Instant, SystemTime)) -> Self {
        Self { since, at }
    }

    /// Returns whether a lease that was requested then still counts as held, by both clocks.
    #[doc(hidden)]
    pub fn holds(&self, lease: Duration) -> bool {
        let time = lease.saturating_sub(LEASE_MARGIN).max(lease / 2);
        self.since.elapsed() < time && self.at.elapsed().is_ok_and(|elapsed| elapsed < time)
    }
}
