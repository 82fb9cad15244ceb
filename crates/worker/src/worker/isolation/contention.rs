//! Detects that a consumer's own transactions collide, and decides how its batches run meanwhile.
//!
//! A batch holds the locks of all its messages until it commits, so two batches that touch the same rows in different orders deadlock,
//! also where they run in two processes. PostgreSQL takes a second to notice. So a batch waits for locks only for a moment ([`LockWait`]);
//! one that had to give way has found contention. From then on, for a while, one batch of the consumer runs at a time over all processes
//! (`oncely.take_turn`): alone, it can't wait for a batch that waits for it.
//!
//! Each process detects this for itself. One that does not know yet gives way to a batch that has the turn, and knows then.
//!
//! [`LockWait`]: oncely_postgres::LockWait

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Time for which batches take turns after a collision. Doubled by each collision that comes soon after, up to [`MAX_TURNS_TIME`].
const FIRST_TURNS_TIME: Duration = Duration::from_secs(1);

/// Maximum time of turns, until batches run beside each other to see whether they still collide. That costs a batch.
const MAX_TURNS_TIME: Duration = Duration::from_secs(64);

/// Time after its last turns during which a consumer is shown as contended: longer than the intervals of heartbeats and scrapes.
const SHOWN_TIME: Duration = Duration::from_secs(60);

/// Longest turn, approximately. Others wait for it.
const MAX_TURN_TIME: Duration = Duration::from_millis(100);

/// Minimum number of messages in a turn. If a message takes longer than a sixteenth of [`MAX_TURN_TIME`], each runs in a transaction of its
/// own, beside those of the other lanes and processes: its work takes longer than a batch saves.
const MIN_TURN_MESSAGES: u32 = 16;

/// Time for which messages run by themselves after a turn was not available: the batch that has it makes no progress.
const MISSED_TURN_TIME: Duration = Duration::from_secs(5);

/// Time for which messages run by themselves after slow turns, until a turn of one message measures again. It costs nothing: the message
/// has to run anyway.
const SLOW_TURNS_TIME: Duration = Duration::from_secs(1);

/// Largest factor by which one measurement may raise a message's known time. A turn sometimes waits for another application's locks, or for
/// a batch that does not know yet that it must take turns: one such wait must not look like a slow handler.
const MAX_GROWTH: u32 = 4;

/// Shortest time of a message that is distinguished.
const MIN_MESSAGE_TIME: Duration = Duration::from_millis(1);

/// Mode in which a consumer's next messages run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentionMode {
    /// In batches, beside those of other lanes and processes.
    Beside,
    /// In batches of at most this number of messages, one batch at a time over all processes.
    Turns {
        /// Maximum number of messages in a turn.
        max_messages: usize,
    },
    /// Each in a transaction of its own, beside others.
    ByThemselves,
}

/// Contention of one consumer, over the lanes of this process.
#[derive(Debug, Default)]
pub(crate) struct Contention(Mutex<ContentionState>);

#[derive(Debug, Default)]
struct ContentionState {
    /// Time since which its transactions collide.
    since: Option<Instant>,
    /// Time until which its batches take turns.
    until: Option<Instant>,
    /// Time of turns after a collision.
    period: Duration,
    /// Time since which this process has the turn: one of its lanes has it at a time.
    turn: Option<Instant>,
    /// Time of a message in a turn.
    message: Duration,
    /// Turns of [`MIN_TURN_MESSAGES`] messages take too long.
    is_slow: bool,
    /// Time until which its messages run by themselves.
    by_themselves_until: Option<Instant>,
}

impl Contention {
    /// Records that a batch had to give way to another transaction's locks: batches take turns for a while.
    pub(crate) fn record_collision(&self, now: Instant) {
        let mut state = self.lock();
        match state.until {
            // Another lane's batch ran beside the same one.
            Some(until) if now < until => {}
            Some(until) if now < until + state.period => {
                state.period = (state.period * 2).min(MAX_TURNS_TIME)
            }
            _ => state.period = FIRST_TURNS_TIME,
        }
        if state.until.is_none_or(|until| now >= until + SHOWN_TIME) {
            state.since = Some(now);
        }
        state.until = Some(now + state.period);
    }

    /// Records the start of a turn, after the wait for it.
    pub(crate) fn record_turn_start(&self, now: Instant) {
        self.lock().turn = Some(now);
    }

    /// Records that the turn has committed this number of messages, and measures their time.
    pub(crate) fn record_turn_end(&self, messages: usize, now: Instant) {
        let mut state = self.lock();
        let Some(began) = state.turn.take() else { return };
        let message = (now - began) / u32::try_from(messages).unwrap_or(u32::MAX).max(1);
        state.message = match state.is_slow {
            // Of one message: a better measurement than the turns before.
            true => message,
            false => (state.message + message.min(state.message.max(MIN_MESSAGE_TIME) * MAX_GROWTH)) / 2,
        };
        state.is_slow = state.message * MIN_TURN_MESSAGES > MAX_TURN_TIME;
        if state.is_slow {
            state.by_themselves_until = Some(now + SLOW_TURNS_TIME);
        }
    }

    /// Records that another batch kept the turn for two seconds (`oncely.take_turn`): messages run by themselves for [`MISSED_TURN_TIME`].
    pub(crate) fn record_missed_turn(&self, now: Instant) {
        self.lock().by_themselves_until = Some(now + MISSED_TURN_TIME);
    }

    /// Returns the mode in which messages run now.
    pub(crate) fn mode(&self, now: Instant) -> ContentionMode {
        let state = self.lock();
        if state.until.is_none_or(|until| now >= until) {
            return ContentionMode::Beside;
        }
        if state.by_themselves_until.is_some_and(|until| now < until) {
            return ContentionMode::ByThemselves;
        }
        let max_messages = match state.is_slow {
            true => 1,
            false => MAX_TURN_TIME.as_micros().checked_div(state.message.as_micros()).unwrap_or(u128::MAX),
        };
        ContentionMode::Turns { max_messages: usize::try_from(max_messages).unwrap_or(usize::MAX) }
    }

    /// Returns the time since which the consumer's transactions collide; `None` if the last turns were over a minute ago.
    pub(crate) fn colliding_since(&self, now: Instant) -> Option<Instant> {
        let state = self.lock();
        state.until.filter(|until| now < *until + SHOWN_TIME).and(state.since)
    }

    fn lock(&self) -> MutexGuard<'_, ContentionState> {
        // A panic leaves each change whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn turns_last_longer_with_each_collision_that_follows_and_end() {
        let contention = Contention::default();
        let mut now = Instant::now();
        assert_eq!((contention.mode(now), contention.colliding_since(now)), (ContentionMode::Beside, None));
        let began = now;
        for period in [1, 2, 4, 8, 16, 32, 64, 64] {
            contention.record_collision(now);
            contention.record_collision(now);
            let end = now + Duration::from_secs(period);
            assert!(matches!(contention.mode(end - MILLISECOND), ContentionMode::Turns { .. }), "{period} s");
            assert_eq!(contention.mode(end), ContentionMode::Beside, "{period} s");
            assert_eq!(contention.colliding_since(end), Some(began), "perhaps it is not over");
            now = end;
        }
        now += MAX_TURNS_TIME;
        assert_eq!(contention.colliding_since(now), None, "it is over");
        contention.record_collision(now);
        assert_eq!(
            contention.mode(now + FIRST_TURNS_TIME),
            ContentionMode::Beside,
            "the next one begins with short turns"
        );
        assert_eq!(contention.colliding_since(now), Some(now));
    }

    /// Takes turns one after another, of which each waits for a second before it begins.
    fn take_turns(contention: &Contention, now: &mut Instant, turns: usize, messages: usize, time: Duration) {
        for _ in 0..turns {
            *now += Duration::from_secs(1);
            contention.record_collision(*now);
            contention.record_turn_start(*now);
            *now += time;
            contention.record_turn_end(messages, *now);
        }
    }

    fn max_messages(contention: &Contention, now: Instant) -> usize {
        match contention.mode(now) {
            ContentionMode::Turns { max_messages } => max_messages,
            mode => panic!("{mode:?} {contention:?}"),
        }
    }

    #[test]
    fn a_turn_is_short_however_long_a_message_takes() {
        let contention = Contention::default();
        let mut now = Instant::now();
        take_turns(&contention, &mut now, 20, 100, 100 * MILLISECOND);
        assert!((95..=105).contains(&max_messages(&contention, now)), "{contention:?}");
        take_turns(&contention, &mut now, 20, 10, 100 * MILLISECOND);
        assert_eq!(contention.mode(now), ContentionMode::ByThemselves, "slow handlers run beside each other");
        contention.record_collision(now + SLOW_TURNS_TIME);
        assert_eq!(max_messages(&contention, now + SLOW_TURNS_TIME), 1, "one message measures again");
        take_turns(&contention, &mut now, 1, 1, 50 * MILLISECOND);
        assert_eq!(contention.mode(now), ContentionMode::ByThemselves, "it is as slow as before");
        take_turns(&contention, &mut now, 1, 1, 2 * MILLISECOND);
        assert_eq!(max_messages(&contention, now), 50, "it was a wait for locks");
        contention.record_missed_turn(now);
        assert_eq!(contention.mode(now), ContentionMode::ByThemselves);
        contention.record_collision(now + MISSED_TURN_TIME);
        assert_eq!(max_messages(&contention, now + MISSED_TURN_TIME), 50);
    }

    #[test]
    fn a_turn_that_waits_for_a_lock_is_no_slow_handler() {
        let contention = Contention::default();
        let mut now = Instant::now();
        for (few, many) in [(1, 500), (3, 40), (5, 200)] {
            take_turns(&contention, &mut now, 10, many, 50 * MILLISECOND);
            take_turns(&contention, &mut now, 1, few, 500 * MILLISECOND);
            assert!(max_messages(&contention, now) >= 25, "{few} of {many}: {contention:?}");
        }
    }
}
