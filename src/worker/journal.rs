//! What was decided of each delivery, for a test that hands them over without a broker. Without the feature `testing`, which no release
//! build has, it is nothing.

use crate::amqp::Delivery;
use crate::outcome::Outcome;

/// Outcomes by the number of the delivery; of several the last.
#[cfg(feature = "testing")]
#[derive(Debug, Default)]
pub(crate) struct Journal(std::sync::Mutex<std::collections::HashMap<u64, Outcome>>);

#[cfg(feature = "testing")]
impl Journal {
    pub(crate) fn note(&self, delivery: &Delivery, outcome: &Outcome) {
        self.lock().insert(delivery.tag, outcome.clone());
    }

    /// All that was noted since the last time.
    pub(crate) fn take(&self) -> std::collections::HashMap<u64, Outcome> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, std::collections::HashMap<u64, Outcome>> {
        // Each entry is whole.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Nothing.
#[cfg(not(feature = "testing"))]
#[derive(Debug, Default)]
pub(crate) struct Journal;

#[cfg(not(feature = "testing"))]
impl Journal {
    #[inline(always)]
    pub(crate) fn note(&self, _: &Delivery, _: &Outcome) {}
}
