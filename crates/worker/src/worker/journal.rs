//! Outcome of each delivery, for a test that delivers messages without a broker. Empty without the feature `testing`, which no release
//! build has.

use oncely_amqp::Delivery;
use oncely_core::outcome::Outcome;

/// Outcomes by the number of the delivery; of several the last.
#[cfg(feature = "testing")]
#[derive(Debug, Default)]
pub(crate) struct Journal(std::sync::Mutex<std::collections::HashMap<u64, Outcome>>);

#[cfg(feature = "testing")]
impl Journal {
    /// Records the outcome of a delivery.
    pub(crate) fn record(&self, delivery: &Delivery, outcome: &Outcome) {
        self.lock().insert(delivery.tag, outcome.clone());
    }

    /// Takes all outcomes recorded since the last call.
    pub(crate) fn take(&self) -> std::collections::HashMap<u64, Outcome> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, std::collections::HashMap<u64, Outcome>> {
        // Each entry is whole.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Records nothing.
#[cfg(not(feature = "testing"))]
#[derive(Debug, Default)]
pub(crate) struct Journal;

#[cfg(not(feature = "testing"))]
impl Journal {
    /// Does nothing.
    #[inline(always)]
    pub(crate) fn record(&self, _: &Delivery, _: &Outcome) {}
}
