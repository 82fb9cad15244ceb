//! Deliveries that wait beside the lanes: unacknowledged, in nobody's way, until their time comes.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::identity::IdentityPart;

/// Why a delivery waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It failed, and perhaps all others do as well: it waits for its time or for the first one that succeeds.
    Environment,
    /// Somebody holds what it needs.
    Held,
}

/// Most deliveries that come back at once: a lane runs them one by one, and what has just arrived must not wait long for them.
const AT_ONCE: usize = 16;

/// Of them, most of one tenant while others have some: one whose keys are all held must not keep another's waiting.
const OF_ONE: usize = 4;

/// While nothing succeeds: how long what arrives waits after a batch that failed. Each message is tried that soon, since it may be the
/// one that succeeds.
const ARRIVALS: Duration = Duration::from_secs(1);

/// How long a delivery waits here at the most.
const LONGEST_ASIDE: Duration = Duration::from_secs(120);

/// Longest pause between two tries of what has failed before, while nothing succeeds.
const LONGEST: Duration = Duration::from_secs(10);

/// The deliveries of a consumer that wait.
#[derive(Debug)]
pub(crate) struct Aside<T> {
    state: Mutex<State<T>>,
    changed: Notify,
}

#[derive(Debug)]
struct State<T> {
    waiting: Vec<Waiting<T>>,
    pause: Option<Pause>,
}

#[derive(Debug)]
struct Waiting<T> {
    due: Instant,
    /// Since when it waits, the times in between that it was tried included.
    since: Instant,
    cause: Cause,
    /// Whose it is.
    tenant: IdentityPart,
    delivery: T,
}

/// Nothing succeeds at the moment.
#[derive(Clone, Copy, Debug)]
struct Pause {
    length: Duration,
    /// When one of the waiting is tried again.
    probe: Instant,
    /// When what arrives is tried.
    arrivals: Instant,
}

/// What may be taken now.
#[derive(Debug)]
pub(crate) struct Due<T> {
    pub(crate) back: Vec<T>,
    /// When to look again.
    pub(crate) next: Option<Instant>,
    /// What arrives is not taken before.
    pub(crate) arrivals: Option<Instant>,
}

impl<T> Default for Aside<T> {
    fn default() -> Self {
        Self { state: Mutex::new(State { waiting: Vec::new(), pause: None }), changed: Notify::new() }
    }
}

impl<T> Aside<T> {
    /// Puts a delivery aside until it is due; it may have been here before, `since` then.
    pub(crate) fn put(&self, due: Instant, since: Instant, cause: Cause, tenant: IdentityPart, delivery: T) {
        self.lock().waiting.push(Waiting { due, since, cause, tenant, delivery });
        self.changed.notify_waiters();
    }

    /// Nothing of a batch succeeded, and nobody answers for that: the consumer pauses, longer each time. Is it the first time?
    pub(crate) fn pause(&self, now: Instant) -> bool {
        let mut state = self.lock();
        let before = state.pause;
        let length = before.map_or(Duration::from_millis(250), |pause| (pause.length * 2).min(LONGEST));
        let arrivals = now + ARRIVALS.min(length);
        state.pause = Some(Pause { length, probe: now + length, arrivals });
        drop(state);
        self.changed.notify_waiters();
        before.is_none()
    }

    /// A message has succeeded: what waited for that comes back. Was the consumer paused?
    pub(crate) fn resume(&self, now: Instant) -> bool {
        let mut state = self.lock();
        if state.pause.take().is_none() {
            return false;
        }
        for one in state.waiting.iter_mut().filter(|one| one.cause == Cause::Environment) {
            one.due = now;
        }
        drop(state);
        self.changed.notify_waiters();
        true
    }

    /// What arrives is not taken before.
    pub(crate) fn arrivals(&self) -> Option<Instant> {
        self.lock().pause.map(|pause| pause.arrivals)
    }

    /// What is due. While the consumer is paused, one at a time of what failed.
    pub(crate) fn due(&self, now: Instant) -> Due<T> {
        let mut state = self.lock();
        let pause = state.pause;
        let mut back = Vec::new();
        let mut probes = pause.map_or(usize::MAX, |pause| usize::from(pause.probe <= now));
        // The one that has waited longest first, so that each gets its turn.
        state.waiting.sort_by_key(|one| one.due);
        for most in [OF_ONE, AT_ONCE] {
            let mut of_tenant: HashMap<IdentityPart, usize> = HashMap::new();
            let mut kept = Vec::with_capacity(state.waiting.len());
            for one in std::mem::take(&mut state.waiting) {
                let may_run = one.due <= now
                    && back.len() < AT_ONCE
                    && (one.cause == Cause::Held || probes > 0)
                    && of_tenant.get(&one.tenant).is_none_or(|taken| *taken < most);
                if may_run {
                    *of_tenant.entry(one.tenant).or_default() += 1;
                    probes = probes.saturating_sub(usize::from(one.cause == Cause::Environment));
                    back.push(one.delivery);
                } else {
                    kept.push(one);
                }
            }
            state.waiting = kept;
        }
        let soonest = |one: &Waiting<T>| match (one.cause, pause) {
            (Cause::Environment, Some(pause)) => one.due.max(pause.probe),
            _ => one.due,
        };
        let next = state.waiting.iter().map(soonest).min();
        Due { back, next, arrivals: pause.map(|pause| pause.arrivals) }
    }

    /// Takes out what is more than `room`, in number or in bytes, and what has waited for more than two minutes: where that many wait, what is behind them in the
    /// queue would not come, and the broker closes a channel that owes an acknowledgement for too long (RabbitMQ's `consumer_timeout`).
    pub(crate) fn overflow(
        &self,
        now: Instant,
        room: usize,
        bytes: usize,
        size: impl Fn(&T) -> usize,
    ) -> Vec<T> {
        let mut state = self.lock();
        state.waiting.sort_by_key(|one| one.since);
        let old = state.waiting.iter().take_while(|one| now - one.since > LONGEST_ASIDE).count();
        let mut held: usize = state.waiting.iter().map(|one| size(&one.delivery)).sum();
        let mut heavy = 0;
        while held > bytes
            && let Some(one) = state.waiting.get(heavy)
        {
            held -= size(&one.delivery);
            heavy += 1;
        }
        let more = state.waiting.len().saturating_sub(room).max(old).max(heavy);
        state.waiting.drain(..more).map(|one| one.delivery).collect()
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Waits until something is put aside, paused or resumed. What happens before it is first polled is missed: enable it, then look.
    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Whatever is interrupted here leaves deliveries out at the worst; they come again with their channel.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acme() -> IdentityPart {
        IdentityPart::new(b"acme").unwrap()
    }

    #[test]
    fn a_tenant_whose_keys_are_all_held_keeps_no_other_one_waiting() {
        let (aside, start) = (Aside::default(), Instant::now());
        for number in 0..1_000 {
            aside.put(start, start, Cause::Held, acme(), number);
        }
        let globex = IdentityPart::new(b"globex").unwrap();
        for number in 1_000..1_005 {
            aside.put(start + millis(1), start, Cause::Held, globex.clone(), number);
        }
        let back = aside.due(start + millis(1)).back;
        assert_eq!(back.len(), AT_ONCE);
        assert_eq!(back.iter().filter(|number| **number >= 1_000).count(), OF_ONE);
        assert_eq!(aside.len(), 1_005 - AT_ONCE);
    }

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn while_nothing_succeeds_one_at_a_time_is_tried_and_the_first_success_brings_all_back() {
        let (aside, start) = (Aside::default(), Instant::now());
        for number in 0..40 {
            aside.put(start + millis(100), start, Cause::Environment, acme(), number);
        }
        assert!(aside.pause(start));
        assert!(aside.due(start).back.is_empty());
        let now = start + millis(250);
        assert_eq!(aside.due(now).back, [0]);
        assert!(!aside.pause(now), "it was paused");
        assert!(aside.due(now).back.is_empty());
        let now = now + millis(500);
        assert_eq!(aside.due(now).back, [1], "another one");
        assert!(aside.resume(now));
        assert_eq!(aside.due(now).back.len(), AT_ONCE);
        assert_eq!(aside.due(now).back.len(), AT_ONCE);
        assert_eq!(aside.len(), 6);
        assert!(!aside.resume(now));
    }

    #[test]
    fn what_arrives_never_waits_longer_than_a_second() {
        let (aside, start): (Aside<u32>, _) = (Aside::default(), Instant::now());
        for _ in 0..20 {
            aside.pause(start);
        }
        assert_eq!(aside.due(start).arrivals, Some(start + ARRIVALS));
    }

    #[test]
    fn what_somebody_holds_is_tried_whether_others_succeed_or_not() {
        let (aside, start) = (Aside::default(), Instant::now());
        aside.put(start + millis(100), start, Cause::Held, acme(), "held");
        aside.put(start + millis(100), start, Cause::Environment, acme(), "failed");
        aside.pause(start);
        let now = start + millis(100);
        assert_eq!(aside.due(now).back, ["held"]);
        assert_eq!(aside.due(now).next, Some(start + millis(250)));
        assert_eq!(aside.overflow(now, 0, 100, |_| 0), ["failed"]);
    }

    #[test]
    fn what_waits_too_long_makes_room_as_what_is_too_much_does() {
        let (aside, start) = (Aside::default(), Instant::now());
        for number in 0..5 {
            aside.put(
                start + millis(30_000),
                start + millis(1_000) * number,
                Cause::Environment,
                acme(),
                number,
            );
        }
        let now = start + millis(5_000);
        assert_eq!(aside.overflow(now, 4, 100, |_| 0), [0]);
        let now = start + LONGEST_ASIDE + millis(2_000);
        assert_eq!(aside.overflow(now, 4, 100, |_| 0), [1]);
        assert_eq!(aside.overflow(now, 4, 100, |_| 40), [2], "two of forty bytes fit into a hundred");
        assert_eq!(aside.len(), 2);
    }
}
