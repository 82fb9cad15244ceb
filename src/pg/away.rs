//! When PostgreSQL could not be reached.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// When PostgreSQL could not be reached last, by any session that shares this. A session that has rested may be gone though the server is well
/// (`idle_session_timeout`, a NAT, a pooler), so only what was asked in a session of now tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Away(Arc<Mutex<Option<Instant>>>);

impl Away {
    pub(crate) fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Was it away at this time, or since?
    pub(crate) fn is_since(&self, time: Instant) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|away| away >= time)
    }

    /// Was it away within this time?
    pub(crate) fn is_within(&self, time: Duration) -> bool {
        let away = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        away.is_some_and(|away| away.elapsed() < time)
    }
}
