//! The size of batches, by the time that the handler takes for a message.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::worker::prediction::SMALL;

/// Time of a batch in its handler, approximately. As long its messages hold their locks, keep those behind them waiting, and count towards
/// the handler's deadline. A commit for each costs about a hundredth more.
const LONGEST: Duration = Duration::from_millis(250);

/// Messages of a batch that measures the handler after a slow transaction.
const MEASURE: usize = 8;

/// Number of messages that make up half of the measured time.
const REMEMBERED: f64 = 64.0;

/// Time of a message in the handler, over the lanes of a consumer in this process, and the size of its batches by that.
///
/// For handlers that get one message at a time, which take as long for each in a large batch as in a small one. The rest of a transaction,
/// a slow disk's COMMIT above all, takes as long for one message as for many: smaller batches would only make that worse.
#[derive(Debug)]
pub(crate) struct Pace(Mutex<PaceState>);

#[derive(Debug)]
struct PaceState {
    /// Time of a message, in seconds.
    message: f64,
    /// Whether a transaction was slow, and the handler's part of it is not known.
    is_unknown: bool,
}

impl Default for Pace {
    /// Begins with small batches.
    fn default() -> Self {
        #[allow(clippy::cast_precision_loss)] // 64
        Self(Mutex::new(PaceState { message: LONGEST.as_secs_f64() / SMALL as f64, is_unknown: false }))
    }
}

impl Pace {
    /// Records that the handler took this long for this number of messages.
    pub(crate) fn record(&self, messages: usize, took: Duration) {
        let mut state = self.lock();
        state.is_unknown = false;
        state.record(messages, took);
    }

    /// Records that the handler took no longer than this.
    pub(crate) fn record_transaction(&self, messages: usize, took: Duration) {
        let mut state = self.lock();
        #[allow(clippy::cast_precision_loss)] // up to 64
        let known = state.message * messages as f64;
        if took.as_secs_f64() < known {
            state.record(messages, took);
        } else if took > LONGEST {
            state.is_unknown = true;
        }
    }

    /// Returns the most messages of the next batch, at least one.
    pub(crate) fn most(&self) -> usize {
        let state = self.lock();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
        let most = (LONGEST.as_secs_f64() / state.message) as usize;
        most.clamp(1, if state.is_unknown { MEASURE } else { usize::MAX })
    }

    /// Returns whether the handler has to be measured by itself.
    pub(crate) fn needs_handler_time(&self) -> bool {
        self.most() < SMALL
    }

    fn lock(&self) -> MutexGuard<'_, PaceState> {
        // A panic leaves each change whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PaceState {
    fn record(&mut self, messages: usize, took: Duration) {
        #[allow(clippy::cast_precision_loss)] // a few thousand
        let messages = messages.max(1) as f64;
        self.message += (took.as_secs_f64() / messages - self.message) * messages / (messages + REMEMBERED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// Runs batches of up to 500, as large as they may be, with this time for each message; returns the sizes.
    fn run(pace: &Pace, batches: usize, message: Duration) -> Vec<usize> {
        let run = |_| {
            let most = pace.most().min(500);
            pace.record(most, message * u32::try_from(most).unwrap());
            most
        };
        (0..batches).map(run).collect()
    }

    #[test]
    fn a_batch_soon_is_large_where_the_handler_is_fast() {
        let pace = Pace::default();
        let sizes = run(&pace, 6, MILLISECOND / 20);
        assert_eq!((sizes[0], sizes[5]), (SMALL, 500), "{sizes:?}");
        assert!(!pace.needs_handler_time());
    }

    #[test]
    fn a_batch_of_a_slow_handler_is_short_and_grows_back() {
        let pace = Pace::default();
        run(&pace, 6, MILLISECOND / 20);
        // The longest batch that a deadline ended.
        pace.record(500, 30_000 * MILLISECOND);
        assert!(pace.most() <= 5 && pace.needs_handler_time(), "{pace:?}");
        let sizes = run(&pace, 100, 20 * MILLISECOND);
        assert!((10..=14).contains(&sizes[99]), "{sizes:?}");
        let sizes = run(&pace, 100, 1_000 * MILLISECOND);
        assert_eq!(sizes[99], 1, "{sizes:?}");
        let sizes = run(&pace, 600, MILLISECOND / 20);
        assert_eq!(sizes[599], 500, "{sizes:?}");
    }

    #[test]
    fn a_slow_disk_is_no_slow_handler() {
        let pace = Pace::default();
        let most = pace.most();
        pace.record_transaction(most, 300 * MILLISECOND);
        assert!(pace.needs_handler_time() && pace.most() == MEASURE, "{pace:?}");
        pace.record(MEASURE, MILLISECOND);
        assert!(!pace.needs_handler_time() && pace.most() > most, "{pace:?}");
        // A transaction that is not slow says something of its handler, too.
        let pace = Pace::default();
        pace.record_transaction(1, 5 * MILLISECOND);
        assert_eq!(pace.most(), most, "{pace:?}");
        pace.record_transaction(most, 5 * MILLISECOND);
        assert!(pace.most() > most, "{pace:?}");
    }

    #[test]
    fn one_message_that_waits_for_a_lock_is_no_slow_handler() {
        let pace = Pace::default();
        run(&pace, 10, MILLISECOND / 20);
        pace.record(1, 500 * MILLISECOND);
        assert!(pace.most() > 30, "{pace:?}");
        pace.record(500, 100 * MILLISECOND);
        assert!(pace.most() > 200, "{pace:?}");
    }
}
