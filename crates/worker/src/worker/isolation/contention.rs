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

/// Time for which batches take turns after a collision. Doubled by each collision that comes soon after, up to [`LONGEST`].
const FIRST: Duration = Duration::from_secs(1);

/// Longest time of turns, until batches run beside each other to see whether they still collide. That costs a batch.
const LONGEST: Duration = Duration::from_secs(64);

/// Time after its last turns during which a consumer is shown as contended: longer than the intervals of heartbeats and scrapes.
const SHOWN: Duration = Duration::from_secs(60);

/// Longest turn, approximately. Others wait for it.
const TURN: Duration = Duration::from_millis(100);

/// Fewest messages of a turn. If a message takes longer than a sixteenth of [`TURN`], each runs in a transaction of its own, beside those
/// of the other lanes and processes: its work takes longer than a batch saves.
const FEWEST: u32 = 16;

/// Time for which messages run by themselves after a turn was not available: the batch that has it makes no progress.
const MISSED: Duration = Duration::from_secs(5);

/// The same after slow turns, until a turn of one message measures again. It costs nothing: the message has to run anyway.
const SLOW: Duration = Duration::from_secs(1);

/// Largest factor by which one measurement may raise a message's known time. A turn sometimes waits for another application's locks, or for
/// a batch that does not know yet that it must take turns: one such wait must not look like a slow handler.
const GROWTH: u32 = 4;

/// Shortest distinguishable time of a message.
const LEAST: Duration = Duration::from_millis(1);

/// Way in which a consumer's next messages run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentionMode {
    /// In batches, beside those of other lanes and processes.
    Beside,
    /// In batches of at most this number of messages, one batch at a time over all processes.
    Turns {
        /// Most messages of a turn.
        most: usize,
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
    /// Turns of [`FEWEST`] messages take too long.
    is_slow: bool,
    /// Time until which its messages run by themselves.
    by_themselves_until: Option<Instant>,
}

impl Contention {
    /// Notes that a batch had to give way to another transaction's locks.
    pub(crate) fn collided(&self, now: Instant) {
        let mut state = self.lock();
        match state.until {
            // Another lane's batch ran beside the same one.
            Some(until) if now < until => {}
            Some(until) if now < until + state.period => state.period = (state.period * 2).min(LONGEST),
            _ => state.period = FIRST,
        }
        if state.until.is_none_or(|until| now >= until + SHOWN) {
            state.since = Some(now);
        }
        state.until = Some(now + state.period);
    }

    /// Notes that a turn begins. The wait for it is over.
    pub(crate) fn turn_began(&self, now: Instant) {
        self.lock().turn = Some(now);
    }

    /// Records that the turn has committed this number of messages.
    pub(crate) fn turn_ended(&self, messages: usize, now: Instant) {
        let mut state = self.lock();
        let Some(began) = state.turn.take() else { return };
        let message = (now - began) / u32::try_from(messages).unwrap_or(u32::MAX).max(1);
        state.message = match state.is_slow {
            // Of one message: a better measurement than the turns before.
            true => message,
            false => (state.message + message.min(state.message.max(LEAST) * GROWTH)) / 2,
        };
        state.is_slow = state.message * FEWEST > TURN;
        if state.is_slow {
            state.by_themselves_until = Some(now + SLOW);
        }
    }

    /// Records that the turn was not available in time.
    pub(crate) fn missed(&self, now: Instant) {
        self.lock().by_themselves_until = Some(now + MISSED);
    }

    /// Returns how messages run now.
    pub(crate) fn course(&self, now: Instant) -> ContentionMode {
        let state = self.lock();
        if state.until.is_none_or(|until| now >= until) {
            return ContentionMode::Beside;
        }
        if state.by_themselves_until.is_some_and(|until| now < until) {
            return ContentionMode::ByThemselves;
        }
        let most = match state.is_slow {
            true => 1,
            false => TURN.as_micros().checked_div(state.message.as_micros()).unwrap_or(u128::MAX),
        };
        ContentionMode::Turns { most: usize::try_from(most).unwrap_or(usize::MAX) }
    }

    /// Returns since when the consumer's transactions collide; `None` if the last turns were over a minute ago.
    pub(crate) fn since(&self, now: Instant) -> Option<Instant> {
        let state = self.lock();
        state.until.filter(|until| now < *until + SHOWN).and(state.since)
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
        assert_eq!((contention.course(now), contention.since(now)), (ContentionMode::Beside, None));
        let began = now;
        for period in [1, 2, 4, 8, 16, 32, 64, 64] {
            contention.collided(now);
            contention.collided(now);
            let end = now + Duration::from_secs(period);
            assert!(
                matches!(contention.course(end - MILLISECOND), ContentionMode::Turns { .. }),
                "{period} s"
            );
            assert_eq!(contention.course(end), ContentionMode::Beside, "{period} s");
            assert_eq!(contention.since(end), Some(began), "perhaps it is not over");
            now = end;
        }
        now += LONGEST;
        assert_eq!(contention.since(now), None, "it is over");
        contention.collided(now);
        assert_eq!(
            contention.course(now + FIRST),
            ContentionMode::Beside,
            "the next one begins with short turns"
        );
        assert_eq!(contention.since(now), Some(now));
    }

    /// Takes turns one after another, of which each waits for a second before it begins.
    fn take_turns(contention: &Contention, now: &mut Instant, turns: usize, messages: usize, time: Duration) {
        for _ in 0..turns {
            *now += Duration::from_secs(1);
            contention.collided(*now);
            contention.turn_began(*now);
            *now += time;
            contention.turn_ended(messages, *now);
        }
    }

    fn most(contention: &Contention, now: Instant) -> usize {
        match contention.course(now) {
            ContentionMode::Turns { most } => most,
            course => panic!("{course:?} {contention:?}"),
        }
    }

    #[test]
    fn a_turn_is_short_however_long_a_message_takes() {
        let contention = Contention::default();
        let mut now = Instant::now();
        take_turns(&contention, &mut now, 20, 100, 100 * MILLISECOND);
        assert!((95..=105).contains(&most(&contention, now)), "{contention:?}");
        take_turns(&contention, &mut now, 20, 10, 100 * MILLISECOND);
        assert_eq!(
            contention.course(now),
            ContentionMode::ByThemselves,
            "slow handlers run beside each other"
        );
        contention.collided(now + SLOW);
        assert_eq!(most(&contention, now + SLOW), 1, "one message measures again");
        take_turns(&contention, &mut now, 1, 1, 50 * MILLISECOND);
        assert_eq!(contention.course(now), ContentionMode::ByThemselves, "it is as slow as before");
        take_turns(&contention, &mut now, 1, 1, 2 * MILLISECOND);
        assert_eq!(most(&contention, now), 50, "it was a wait for locks");
        contention.missed(now);
        assert_eq!(contention.course(now), ContentionMode::ByThemselves);
        contention.collided(now + MISSED);
        assert_eq!(most(&contention, now + MISSED), 50);
    }

    #[test]
    fn a_turn_that_waits_for_a_lock_is_no_slow_handler() {
        let contention = Contention::default();
        let mut now = Instant::now();
        for (few, many) in [(1, 500), (3, 40), (5, 200)] {
            take_turns(&contention, &mut now, 10, many, 50 * MILLISECOND);
            take_turns(&contention, &mut now, 1, few, 500 * MILLISECOND);
            assert!(most(&contention, now) >= 25, "{few} of {many}: {contention:?}");
        }
    }
}
