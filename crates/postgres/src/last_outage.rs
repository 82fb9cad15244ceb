//! The time at which PostgreSQL could not be reached.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The last time at which PostgreSQL could not be reached, by any session that shares this. Only newly opened sessions count: an idle
/// session may have been closed although the server is available (`idle_session_timeout`, a NAT, a pooler).
#[derive(Clone, Debug, Default)]
pub struct LastOutage(Arc<Mutex<Option<Instant>>>);

impl LastOutage {
    /// Records that PostgreSQL could not be reached now.
    pub fn record(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Returns whether PostgreSQL was unreachable at `time` or later.
    pub fn is_since(&self, time: Instant) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|outage| outage >= time)
    }

    /// Returns whether PostgreSQL was unreachable during the last `time`.
    pub fn is_within(&self, time: Duration) -> bool {
        let outage = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        outage.is_some_and(|outage| outage.elapsed() < time)
    }
}
