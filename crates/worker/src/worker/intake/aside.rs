//! Deliveries that wait beside the lanes, unacknowledged, until their time comes.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use oncely_core::identity::IdentityPart;

/// Origin of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchOrigin {
    /// From the broker.
    Arrived,
    /// From aside: each of its messages has failed before, or found its key held.
    Back,
}

/// Reason why a delivery waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It failed, and perhaps all others do as well: it waits for its time or for the first success.
    Environment,
    /// Another transaction or run holds its key or a lock.
    Held,
    /// It has to run alone in the process, and lets others pass.
    Suspect,
}

/// Maximum number of deliveries that come back at once: a lane runs them one by one, and new ones must not wait long for them.
const MAX_RETURNED: usize = 16;

/// Maximum number of these of one tenant while others have some: a tenant with only held keys must not keep another's waiting.
const MAX_RETURNED_PER_TENANT: usize = 4;

/// While nothing succeeds: wait of new deliveries after a batch that failed. Each message is tried that soon, since it may be the one that
/// succeeds.
const ARRIVALS_PAUSE: Duration = Duration::from_secs(1);

/// Maximum wait of a delivery here.
pub(super) const MAX_WAIT_ASIDE: Duration = Duration::from_secs(120);

/// Maximum time for which those of late tenants rest while others may run, after a run and while one of them is at work.
const MAX_REST: Duration = Duration::from_secs(60);

/// Time after the rest for which a tenant is known as late.
const LATE_TIME: Duration = Duration::from_secs(60);

/// Maximum pause between two tries of failed deliveries while nothing succeeds.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Waiting deliveries of a consumer.
#[derive(Debug)]
pub(crate) struct DeferredDeliveries<T> {
    state: Mutex<DeferredState<T>>,
    changed: Notify,
}

#[derive(Debug)]
struct DeferredState<T> {
    waiting: Vec<DeferredDelivery<T>>,
    /// Number of the last turn of each tenant with waiting deliveries: the one with the lowest number is next.
    turns: HashMap<IdentityPart, u64>,
    last_turn: u64,
    /// Tenants with messages that use up their time, and until when they are known as such.
    late: HashMap<IdentityPart, Instant>,
    /// Until then, none of their deliveries runs while others may.
    late_rests: Option<Instant>,
    /// Time of the rest by each delivery of theirs that is at work.
    late_at_work: Vec<Instant>,
    /// The last one of a late tenant came from here: one that has arrived is next.
    late_came_back: bool,
    pause: Option<StallPause>,
}

#[derive(Debug)]
struct DeferredDelivery<T> {
    due: Instant,
    /// Time since which it waits, including the times at which it was tried.
    since: Instant,
    cause: Cause,
    tenant: IdentityPart,
    delivery: T,
}

/// Pause while nothing succeeds.
#[derive(Clone, Copy, Debug)]
struct StallPause {
    length: Duration,
    /// Time at which a waiting delivery is tried again.
    probe: Instant,
    /// Time at which new deliveries are tried.
    arrivals: Instant,
}

/// Deliveries that may be taken now.
#[derive(Debug)]
pub(crate) struct DueDeliveries<T> {
    pub(crate) deliveries: Vec<T>,
    /// If one of them is of a late tenant: for [`DeferredDeliveries::end_late`].
    pub(crate) late: Option<Instant>,
    /// Time of the next check.
    pub(crate) next: Option<Instant>,
    /// Time before which no new delivery is taken.
    pub(crate) arrivals: Option<Instant>,
}

impl<T> Default for DeferredDeliveries<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(DeferredState {
                waiting: Vec::new(),
                turns: HashMap::new(),
                last_turn: 0,
                late: HashMap::new(),
                late_rests: None,
                late_at_work: Vec::new(),
                late_came_back: false,
                pause: None,
            }),
            changed: Notify::new(),
        }
    }
}

impl<T> DeferredDeliveries<T> {
    /// Puts a delivery aside until it is due; `since`: when it was put here first.
    pub(crate) fn put(&self, due: Instant, since: Instant, cause: Cause, tenant: IdentityPart, delivery: T) {
        let mut state = self.lock();
        state.last_turn += 1;
        // Behind those that wait already.
        let turn = state.last_turn;
        state.turns.entry(tenant.clone()).or_insert(turn);
        state.waiting.push(DeferredDelivery { due, since, cause, tenant, delivery });
        drop(state);
        self.changed.notify_waiters();
    }

    /// Records that a message of the tenant used up its time without success: the next message of a late tenant comes back once others had
    /// as much time.
    pub(crate) fn record_out_of_time(&self, now: Instant, tenant: &IdentityPart, duration: Duration) {
        let rests = now + duration.min(MAX_REST);
        let mut state = self.lock();
        state.late.retain(|_, until| now < *until);
        state.late.insert(tenant.clone(), rests + LATE_TIME);
        state.late_rests = state.late_rests.max(Some(rests));
        drop(state);
        self.changed.notify_waiters();
    }

    /// Records that a message of the tenant ran by itself, and did not use up its time. If it `has_succeeded`, the tenant is not late any
    /// more.
    pub(crate) fn record_in_time(
        &self,
        now: Instant,
        tenant: &IdentityPart,
        duration: Duration,
        has_succeeded: bool,
    ) {
        let mut state = self.lock();
        if !state.late.contains_key(tenant) {
            return;
        }
        state.late_rests = state.late_rests.max(Some(now + duration.min(MAX_REST)));
        if has_succeeded {
            state.late.remove(tenant);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Begins the run of a message that has arrived of a late tenant. Returns the time for [`Self::end_late`]; `None` if the message may
    /// not run yet: messages of late tenants rest, and take turns with those that come back.
    pub(crate) fn try_begin_late(&self, now: Instant) -> Option<Instant> {
        let mut state = self.lock();
        let comes_back = !state.late_came_back
            && state
                .waiting
                .iter()
                .any(|one| state.may_run(one, now) && state.late.contains_key(&one.tenant));
        if comes_back || state.late_rest().is_some_and(|until| now < until) {
            return None;
        }
        state.late_came_back = false;
        Some(state.begin_late(now))
    }

    /// Records that a message of a late tenant runs while no others may. Returns the time for [`Self::end_late`].
    pub(crate) fn begin_late(&self, now: Instant) -> Instant {
        self.lock().begin_late(now)
    }

    /// Ends the run with this time of [`Self::begin_late`], whether it took place or not.
    pub(crate) fn end_late(&self, end: Instant) {
        let mut state = self.lock();
        if let Some(index) = state.late_at_work.iter().position(|until| *until == end) {
            state.late_at_work.swap_remove(index);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Forgets which tenants are late.
    #[cfg(feature = "testing")]
    pub(crate) fn forget_late(&self) {
        let mut state = self.lock();
        state.late.clear();
        state.late_rests = None;
    }

    /// Returns the tenants that are known as late.
    pub(crate) fn late_tenants(&self, now: Instant) -> HashSet<IdentityPart> {
        let state = self.lock();
        state.late.iter().filter(|(_, until)| now < **until).map(|(tenant, _)| tenant.clone()).collect()
    }

    /// Pauses the consumer, longer each time: nothing of a batch succeeded, with an undecided cause. Returns whether it is the first time.
    /// New deliveries wait if the batch was one of them.
    pub(crate) fn pause(&self, now: Instant, origin: BatchOrigin) -> bool {
        let mut state = self.lock();
        let previous = state.pause;
        let length = previous.map_or(Duration::from_millis(250), |pause| (pause.length * 2).min(MAX_PAUSE));
        let arrivals = match origin {
            BatchOrigin::Arrived => now + ARRIVALS_PAUSE.min(length),
            BatchOrigin::Back => previous.map_or(now, |pause| pause.arrivals),
        };
        state.pause = Some(StallPause { length, probe: now + length, arrivals });
        drop(state);
        self.changed.notify_waiters();
        previous.is_none()
    }

    /// Brings back the deliveries that waited for a success. Returns whether the consumer was paused.
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

    /// Returns the time from which new deliveries may be taken; `None` if the consumer is not paused.
    pub(crate) fn arrivals_due(&self) -> Option<Instant> {
        self.lock().pause.map(|pause| pause.arrivals)
    }

    /// Returns whether a delivery may come back of a tenant that is not late.
    pub(crate) fn has_others(&self, now: Instant) -> bool {
        let state = self.lock();
        state.waiting.iter().any(|one| state.may_run(one, now) && !state.late.contains_key(&one.tenant))
    }

    /// Takes up to `max_deliveries` deliveries that are due, of tenants in turns: while the consumer is paused, failed ones one at a time;
    /// of late tenants one at most, and none while they rest if other deliveries may run (`has_others`).
    pub(crate) fn take_due(&self, now: Instant, max_deliveries: usize, has_others: bool) -> DueDeliveries<T> {
        let state = &mut *self.lock();
        state.late.retain(|_, until| now < *until);
        let rests = state.late_rest().filter(|until| has_others && now < *until);
        let (mut may_be_late, mut late) = (rests.is_none(), None);
        let pause = state.pause;
        let mut deliveries = Vec::new();
        let mut probes = pause.map_or(usize::MAX, |pause| usize::from(pause.probe <= now));
        // Of a tenant, the longest-waiting first, so that each gets its turn.
        state.waiting.sort_by_cached_key(|one| (state.turns.get(&one.tenant).copied(), one.due));
        for max_per_tenant in [MAX_RETURNED_PER_TENANT, MAX_RETURNED] {
            let mut taken_by_tenant: HashMap<IdentityPart, usize> = HashMap::new();
            let mut waiting = Vec::with_capacity(state.waiting.len());
            for one in std::mem::take(&mut state.waiting) {
                let is_late = state.late.contains_key(&one.tenant);
                let may_run = one.due <= now
                    && deliveries.len() < MAX_RETURNED.min(max_deliveries)
                    && (!is_late || may_be_late)
                    && (one.cause != Cause::Environment || probes > 0)
                    && taken_by_tenant.get(&one.tenant).is_none_or(|taken| *taken < max_per_tenant);
                if may_run {
                    if is_late {
                        may_be_late = false;
                        late = Some(state.begin_late(now));
                        state.late_came_back = true;
                    }
                    state.last_turn += 1;
                    state.turns.insert(one.tenant.clone(), state.last_turn);
                    *taken_by_tenant.entry(one.tenant).or_default() += 1;
                    probes = probes.saturating_sub(usize::from(one.cause == Cause::Environment));
                    deliveries.push(one.delivery);
                } else {
                    waiting.push(one);
                }
            }
            state.waiting = waiting;
        }
        let soonest = |one: &DeferredDelivery<T>| {
            let due = rests
                .filter(|_| state.late.contains_key(&one.tenant))
                .map_or(one.due, |until| one.due.max(until));
            match (one.cause, pause) {
                (Cause::Environment, Some(pause)) => due.max(pause.probe),
                _ => due,
            }
        };
        let next = state.waiting.iter().map(soonest).min();
        let tenants: HashSet<&IdentityPart> = state.waiting.iter().map(|one| &one.tenant).collect();
        state.turns.retain(|tenant, _| tenants.contains(tenant));
        DueDeliveries { deliveries, late, next, arrivals: pause.map(|pause| pause.arrivals) }
    }

    /// Takes the deliveries beyond `room`, in number or in bytes, and those that have waited for more than two minutes: otherwise
    /// deliveries behind them in the queue would not come, and the broker closes a channel that withholds an acknowledgement too long
    /// (RabbitMQ's `consumer_timeout`). A suspect stays: its copy would not be marked as redelivered, and would run beside others.
    pub(crate) fn take_overflow(
        &self,
        now: Instant,
        room: usize,
        bytes: usize,
        size: impl Fn(&T) -> usize,
    ) -> Vec<T> {
        let mut state = self.lock();
        let suspects = state.waiting.extract_if(.., |one| one.cause == Cause::Suspect).collect::<Vec<_>>();
        state.waiting.sort_by_key(|one| one.since);
        let old = state.waiting.iter().take_while(|one| now - one.since > MAX_WAIT_ASIDE).count();
        let mut bytes_aside: usize = state.waiting.iter().map(|one| size(&one.delivery)).sum();
        let mut large = 0;
        while bytes_aside > bytes
            && let Some(one) = state.waiting.get(large)
        {
            bytes_aside -= size(&one.delivery);
            large += 1;
        }
        let count = state.waiting.len().saturating_sub(room).max(old).max(large);
        let overflow = state.waiting.drain(..count).map(|one| one.delivery).collect();
        state.waiting.extend(suspects);
        overflow
    }

    /// Returns the number of waiting deliveries.
    pub(crate) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Waits until a delivery is put aside, or the consumer is paused or resumed. A change before its first poll is missed: enable it, then
    /// read the state.
    pub(crate) fn wait_for_change(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    fn lock(&self) -> MutexGuard<'_, DeferredState<T>> {
        // An interrupted change loses deliveries at worst; they come again with their channel.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> DeferredState<T> {
    /// Returns the time until which messages of late tenants rest; `None` if none has run.
    fn late_rest(&self) -> Option<Instant> {
        self.late_rests.max(self.late_at_work.iter().max().copied())
    }

    /// Records that a message of a late tenant runs; returns the time of its rest.
    fn begin_late(&mut self, now: Instant) -> Instant {
        let until = now + MAX_REST;
        self.late_at_work.push(until);
        until
    }

    /// Returns whether a delivery is due: one that failed waits for a probe while the consumer is paused.
    fn may_run(&self, one: &DeferredDelivery<T>, now: Instant) -> bool {
        one.due <= now
            && (one.cause != Cause::Environment || self.pause.is_none_or(|pause| pause.probe <= now))
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
        let (aside, start) = (DeferredDeliveries::default(), Instant::now());
        for number in 0..1_000 {
            aside.put(start, start, Cause::Held, acme(), number);
        }
        let globex = IdentityPart::new(b"globex").unwrap();
        for number in 1_000..1_005 {
            aside.put(start + millis(1), start, Cause::Held, globex.clone(), number);
        }
        let back = aside.take_due(start + millis(1), 100, false).deliveries;
        assert_eq!(back.len(), MAX_RETURNED);
        assert_eq!(back.iter().filter(|number| **number >= 1_000).count(), MAX_RETURNED_PER_TENANT);
        assert_eq!(aside.len(), 1_005 - MAX_RETURNED);
    }

    #[test]
    fn tenants_take_turns_also_where_one_comes_back_at_a_time() {
        let (aside, start) = (DeferredDeliveries::default(), Instant::now());
        for number in 0..1_000 {
            aside.put(start, start, Cause::Held, acme(), number);
        }
        let globex = IdentityPart::new(b"globex").unwrap();
        for number in 1_000..1_002 {
            aside.put(start + millis(1), start, Cause::Held, globex.clone(), number);
        }
        let back = || aside.take_due(start + millis(1), 1, false).deliveries[0];
        assert_eq!([back(), back(), back(), back(), back()], [0, 1_000, 1, 1_001, 2]);
        aside.put(start, start, Cause::Held, globex, 1_002);
        let back = || aside.take_due(start + millis(1), 1, false).deliveries[0];
        assert_eq!([back(), back(), back()], [3, 1_002, 4], "it joins behind those that wait");
    }

    #[test]
    fn late_ones_that_have_arrived_take_turns_with_those_that_come_back() {
        let (aside, start) = (DeferredDeliveries::default(), Instant::now());
        aside.record_out_of_time(start, &acme(), millis(1_000));
        assert_eq!(aside.try_begin_late(start), None, "they rest");
        let now = start + millis(1_000);
        let began = aside.try_begin_late(now).expect("none waits here");
        assert_eq!(aside.try_begin_late(now), None, "one is at work");
        aside.end_late(began);
        (0..2).for_each(|number| aside.put(start, start, Cause::Held, acme(), number));
        let mut turns = Vec::new();
        for _ in 0..4 {
            let arrived = aside.try_begin_late(now);
            let due = aside.take_due(now, 1, true);
            turns.push(due.deliveries.first().copied());
            assert!(arrived.is_some() != due.late.is_some());
            aside.end_late(arrived.or(due.late).unwrap());
        }
        assert_eq!(turns, [Some(0), None, Some(1), None]);
        let (one, other) = (aside.begin_late(now), aside.begin_late(now));
        aside.end_late(one);
        assert_eq!(aside.try_begin_late(now), None, "the other lane is at work on one");
        aside.end_late(other);
        aside.put(start, start, Cause::Environment, acme(), 2);
        aside.pause(now, BatchOrigin::Arrived);
        assert!(aside.try_begin_late(now).is_some(), "the other one waits for a probe");
    }

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn while_nothing_succeeds_one_at_a_time_is_tried_and_the_first_success_brings_all_back() {
        let (aside, start) = (DeferredDeliveries::default(), Instant::now());
        for number in 0..40 {
            aside.put(start + millis(100), start, Cause::Environment, acme(), number);
        }
        assert!(aside.pause(start, BatchOrigin::Arrived));
        assert!(aside.take_due(start, 100, false).deliveries.is_empty());
        let now = start + millis(250);
        assert_eq!(aside.take_due(now, 100, false).deliveries, [0]);
        assert!(!aside.pause(now, BatchOrigin::Arrived), "it was paused");
        assert!(aside.take_due(now, 100, false).deliveries.is_empty());
        let now = now + millis(500);
        assert_eq!(aside.take_due(now, 100, false).deliveries, [1], "another one");
        assert!(aside.resume(now));
        assert_eq!(aside.take_due(now, 100, false).deliveries.len(), MAX_RETURNED);
        assert_eq!(aside.take_due(now, 100, false).deliveries.len(), MAX_RETURNED);
        assert_eq!(aside.len(), 6);
        assert!(!aside.resume(now));
    }

    #[test]
    fn those_of_late_tenants_come_back_one_at_a_time_and_rest_while_others_have_arrived() {
        let (aside, start) = (DeferredDeliveries::default(), Instant::now());
        for number in 0..6 {
            aside.put(start, start, Cause::Held, acme(), number);
        }
        let globex = IdentityPart::new(b"globex").unwrap();
        aside.put(start, start, Cause::Held, globex.clone(), 10);
        aside.record_out_of_time(start, &acme(), millis(4_000));
        assert_eq!(aside.late_tenants(start), HashSet::from([acme()]));
        let due = aside.take_due(start, 100, true);
        assert_eq!((due.deliveries, due.late, due.next), (vec![10], None, Some(start + millis(4_000))));
        let due = aside.take_due(start, 100, false);
        assert_eq!(due.deliveries, [0], "there are no others");
        let now = start + millis(4_000);
        aside.record_out_of_time(now, &globex, millis(1));
        assert!(aside.take_due(now + millis(1), 100, true).deliveries.is_empty(), "one is at work");
        aside.end_late(due.late.unwrap());
        let due = aside.take_due(now + millis(1), 100, true);
        assert_eq!(due.deliveries, [1], "it has ended without a word");
        aside.record_in_time(now, &acme(), millis(1_000), false);
        aside.end_late(due.late.unwrap());
        assert!(
            aside.take_due(now + millis(999), 100, true).deliveries.is_empty(),
            "others have as much time"
        );
        let now = now + millis(1_000);
        aside.record_in_time(now, &acme(), millis(0), true);
        assert_eq!(aside.take_due(now, 2, true).deliveries, [2, 3], "no more than a batch of new ones has");
        assert_eq!(aside.take_due(now, 100, true).deliveries, [4, 5]);
        aside.record_out_of_time(now, &acme(), MAX_REST * 10);
        assert!(aside.late_tenants(now + MAX_REST + LATE_TIME).is_empty());
    }

    #[test]
    fn what_arrives_never_waits_longer_than_a_second() {
        let (aside, start): (DeferredDeliveries<u32>, _) = (DeferredDeliveries::default(), Instant::now());
        for _ in 0..20 {
            aside.pause(start, BatchOrigin::Arrived);
        }
        assert_eq!(aside.take_due(start, 100, false).arrivals, Some(start + ARRIVALS_PAUSE));
    }

    #[test]
    fn what_somebody_holds_is_tried_whether_others_succeed_or_not() {
        let (aside, start) = (DeferredDeliveries::default(), Instant::now());
        aside.put(start + millis(100), start, Cause::Held, acme(), "held");
        aside.put(start + millis(100), start, Cause::Environment, acme(), "failed");
        aside.pause(start, BatchOrigin::Arrived);
        let now = start + millis(100);
        assert_eq!(aside.take_due(now, 100, false).deliveries, ["held"]);
        assert_eq!(aside.take_due(now, 100, false).next, Some(start + millis(250)));
        assert_eq!(aside.take_overflow(now, 0, 100, |_| 0), ["failed"]);
    }

    #[test]
    fn what_has_to_run_alone_is_not_sent_away() {
        let (aside, start) = (DeferredDeliveries::default(), Instant::now());
        aside.put(start, start, Cause::Suspect, acme(), "suspect");
        aside.put(start, start, Cause::Held, acme(), "held");
        let now = start + MAX_WAIT_ASIDE + millis(1);
        assert_eq!(aside.take_overflow(now, 0, 0, |_| 1), ["held"]);
        aside.pause(now, BatchOrigin::Arrived);
        assert_eq!(aside.take_due(now, 100, false).deliveries, ["suspect"]);
    }

    #[test]
    fn what_waits_too_long_makes_room_as_what_is_too_much_does() {
        let (aside, start) = (DeferredDeliveries::default(), Instant::now());
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
        assert_eq!(aside.take_overflow(now, 4, 100, |_| 0), [0]);
        let now = start + MAX_WAIT_ASIDE + millis(2_000);
        assert_eq!(aside.take_overflow(now, 4, 100, |_| 0), [1]);
        assert_eq!(aside.take_overflow(now, 4, 100, |_| 40), [2], "two of forty bytes fit into a hundred");
        assert_eq!(aside.len(), 2);
    }
}
