//! The time at which PostgreSQL could not be reached.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The last time at which PostgreSQL could not be reached, by any session that shares this. Only newly opened sessions count: an idle
/// session may have been closed although the server is available (`idle_session_timeout`, a NAT, a pooler).
#[derive(Clone, Debug, Default)]
pub struct LastOutage(Arc<Mutex<Option<Instant>>>);

impl LastOutage {
    pub fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Returns whether PostgreSQL was unreachable at this time or since.
    pub fn is_since(&self, time: Instant) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|away| away >= time)
    }

    /// Returns whether PostgreSQL was unreachable within this time.
    pub fn is_within(&self, time: Duration) -> bool {
        let away = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        away.is_some_and(|away| away.elapsed() < time)
    }
}
