//! The size of batches, by the time that the handler takes for a message.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::worker::prediction::MAX_SMALL_BATCH;

/// Maximum time of a batch in its handler, approximately. Its messages hold their locks for this long, and those behind them wait. A commit
/// takes about a hundredth of it.
const MAX_BATCH_TIME: Duration = Duration::from_millis(250);

/// Messages of a batch that measures the handler after a slow transaction.
const MEASURED_MESSAGES: usize = 8;

/// Number of messages that make up half of the measured time.
const HALF_WEIGHT_MESSAGES: f64 = 64.0;

/// Measures the time of a message in the handler, over the lanes of a consumer in this process, and limits its batches by it.
///
/// This is for handlers that get one message at a time: they take as long for each in a large batch as in a small one. The rest of
/// a transaction (the network's round trips, COMMIT on a slow disk) takes as long for one message as for many, so it is left out: smaller
/// batches would only make that worse.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<PaceState>);

#[derive(Debug, Default)]
struct PaceState {
    /// Time of a message, in seconds, once it was measured.
    message: Option<f64>,
    /// Whether a transaction was slow since, and the handler's part in it is unknown.
    is_unknown: bool,
}

impl Pace {
    /// Records the time of the handler for this number of messages; none if no message of the transaction was to run.
    pub(crate) fn record(&self, messages: usize, duration: Duration) {
        let mut state = self.lock();
        state.is_unknown = false;
        state.record(messages, duration);
    }

    /// Records the time of a whole transaction of this number of messages: its handler took no longer.
    pub(crate) fn record_transaction(&self, messages: usize, duration: Duration) {
        let mut state = self.lock();
        #[allow(clippy::cast_precision_loss)] // up to 64
        let expected = state.message.map(|message| message * messages as f64);
        if expected.is_some_and(|expected| duration.as_secs_f64() < expected) {
            state.record(messages, duration);
        } else if duration > MAX_BATCH_TIME {
            state.is_unknown = true;
        }
    }

    /// Returns the maximum number of messages in the next batch, at least one.
    pub(crate) fn max_messages(&self) -> usize {
        let state = self.lock();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
        let most =
            state.message.map_or(usize::MAX, |message| (MAX_BATCH_TIME.as_secs_f64() / message) as usize);
        most.clamp(1, if state.is_unknown { MEASURED_MESSAGES } else { usize::MAX })
    }

    /// Returns the maximum number of messages in the first batch of those that were taken at once: if the handler is not measured yet, a
    /// small batch measures it.
    pub(crate) fn max_at_first(&self) -> usize {
        let is_measured = self.lock().message.is_some();
        self.max_messages().min(if is_measured { usize::MAX } else { MAX_SMALL_BATCH })
    }

    /// Returns whether the handler has to be measured by itself.
    pub(crate) fn needs_handler_time(&self) -> bool {
        self.max_messages() < MAX_SMALL_BATCH
    }

    fn lock(&self) -> MutexGuard<'_, PaceState> {
        // A panic leaves each change whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PaceState {
    /// Updates the time of a message by a measurement, weighted by its number of messages.
    fn record(&mut self, messages: usize, duration: Duration) {
        if messages == 0 {
            return;
        }
        #[allow(clippy::cast_precision_loss)] // a few thousand
        let messages = messages as f64;
        let measured = duration.as_secs_f64() / messages;
        let known = self.message.get_or_insert(measured);
        *known += (measured - *known) * messages / (messages + HALF_WEIGHT_MESSAGES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// Runs batches of up to 500, as large as they may be, with this time for each message; returns the sizes.
    fn run(pace: &Pace, batches: usize, message: Duration) -> Vec<usize> {
        let run = |_| {
            let most = pace.max_at_first().min(500);
            pace.record(most, message * u32::try_from(most).unwrap());
            most
        };
        (0..batches).map(run).collect()
    }

    #[test]
    fn the_first_batch_measures_and_the_next_is_large_where_the_handler_is_fast() {
        let pace = Pace::default();
        assert_eq!(run(&pace, 2, MILLISECOND / 20), [MAX_SMALL_BATCH, 500]);
        assert!(!pace.needs_handler_time());
    }

    #[test]
    fn a_batch_of_a_slow_handler_is_short_and_grows_back() {
        let pace = Pace::default();
        assert_eq!(run(&pace, 2, 20 * MILLISECOND), [MAX_SMALL_BATCH, 12]);
        assert!(pace.needs_handler_time(), "{pace:?}");
        let sizes = run(&pace, 600, 1_000 * MILLISECOND);
        assert_eq!(sizes[599], 1, "{sizes:?}");
        let sizes = run(&pace, 600, MILLISECOND / 20);
        assert_eq!(sizes[599], 500, "{sizes:?}");
    }

    #[test]
    fn a_slow_disk_is_no_slow_handler() {
        let pace = Pace::default();
        run(&pace, 1, MILLISECOND);
        let most = pace.max_messages();
        pace.record_transaction(MAX_SMALL_BATCH, 300 * MILLISECOND);
        assert!(pace.needs_handler_time() && pace.max_messages() == MEASURED_MESSAGES, "{pace:?}");
        pace.record(MEASURED_MESSAGES, MILLISECOND);
        assert!(!pace.needs_handler_time() && pace.max_messages() > most, "{pace:?}");
        // Duplicates run no handler: they are not taken by a few.
        pace.record_transaction(MAX_SMALL_BATCH, 300 * MILLISECOND);
        pace.record(0, Duration::ZERO);
        assert!(!pace.needs_handler_time(), "{pace:?}");
        // A fast transaction limits its handler's time, too.
        let most = pace.max_messages();
        pace.record_transaction(1, 5 * MILLISECOND);
        assert_eq!(pace.max_messages(), most, "{pace:?}");
        pace.record_transaction(MAX_SMALL_BATCH, 5 * MILLISECOND);
        assert!(pace.max_messages() > most, "{pace:?}");
    }

    #[test]
    fn one_message_that_waits_for_a_lock_is_no_slow_handler() {
        let pace = Pace::default();
        run(&pace, 10, MILLISECOND / 20);
        pace.record(1, 500 * MILLISECOND);
        assert!(pace.max_messages() > 30, "{pace:?}");
        pace.record(500, 100 * MILLISECOND);
        assert!(pace.max_messages() > 200, "{pace:?}");
    }
}
