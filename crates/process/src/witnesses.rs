//! Successes and failures in a consumer's lanes, or in a relay's: the witnesses by which a failure is attributed ([`oncely_core::blame`]).

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Maximum absence of a message until it is forgotten, as another process has probably decided it; if it comes back, it begins again.
const MAX_ABSENCE: Duration = Duration::from_secs(600);

/// Maximum number of remembered undecided messages.
const MAX_UNDECIDED: usize = 20_000;

/// Number of times that a message waits to run alone before it runs beside others.
const MAX_TRIES_ALONE: u32 = 8;

/// Time for which a wait behind another message that runs alone is no try.
const UNCOUNTED_WAIT: Duration = Duration::from_secs(60);

/// Minimum time of contention that is not caused by a batch.
const MIN_LASTING_CONTENTION: Duration = Duration::from_secs(60);

/// Minimum number of tries that meet a lock before a message is charged with it: time that passes without a try proves nothing.
const MIN_LOCKED_TRIES: u32 = 3;

/// Time that a failure waits for another message when none is available: by then a fault that affects all has affected another one.
pub const WITNESS_WAIT: Duration = Duration::from_secs(1);

/// Witnesses of one consumer, or of a relay's events, over all lanes of a process. `K` identifies a message or an event.
#[derive(Debug)]
pub struct Witnesses<K> {
    /// Whether nothing has succeeded since an undecided failure.
    stalled: AtomicBool,
    state: Mutex<WitnessState<K>>,
}

#[derive(Debug)]
struct WitnessState<K> {
    /// Number of the last start or failure.
    clock: u64,
    /// Number of the start of the try that started last, of those that have succeeded.
    witness: u64,
    /// Time of the last success.
    succeeded: Option<Instant>,
    /// Messages that have failed and are not decided yet: as many as wait.
    undecided: HashMap<K, UndecidedTry>,
    /// First message that has failed since the last success.
    failing: Option<K>,
    /// Whether another message has failed since then, too.
    others_fail: bool,
    /// SQLSTATE of the last attributed failure, for runs under leases, with keys that don't record it.
    charged: HashMap<K, Option<String>>,
}

#[derive(Clone, Copy, Debug)]
struct UndecidedTry {
    /// Its first failure; `None` if it has only waited for locks.
    failed: Option<FirstFailure>,
    since: Instant,
    /// Tries that met a lock; `None` if no try did.
    met_locks: Option<LockedTries>,
    tries: u32,
    /// Whether it waits in this process; if not, it has gone to the end of its queue.
    is_here: bool,
    /// If it was at work when processes died, and has to run alone.
    alone: Option<WaitAlone>,
}

/// Tries that met a lock.
#[derive(Clone, Copy, Debug)]
struct LockedTries {
    /// Time of the first one.
    since: Instant,
    tries: u32,
    /// Number of the start of the last one, which may be recorded twice.
    last: u64,
}

/// A wait to run alone.
#[derive(Clone, Copy, Debug)]
struct WaitAlone {
    since: Instant,
    tries: u32,
}

impl WaitAlone {
    fn is_over(&self) -> bool {
        self.tries >= MAX_TRIES_ALONE
    }
}

#[derive(Clone, Copy, Debug)]
struct FirstFailure {
    number: u64,
    at: Instant,
    /// Another message ran after it in the same transaction, and has succeeded.
    is_witnessed: bool,
}

/// Start of a try, among the starts and failures of its consumer.
#[derive(Clone, Copy, Debug)]
pub struct Began {
    number: u64,
    /// Value of [`WitnessState::witness`] at that moment.
    witness: u64,
}

impl UndecidedTry {
    fn is_forgotten(&self, now: Instant) -> bool {
        !self.is_here && now.saturating_duration_since(self.since) > MAX_ABSENCE
    }
}

/// Result of a message's try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryResult {
    /// It has taken effect, or has arrived.
    Succeeded,
    /// Its failure is attributed to it, and it is tried again.
    Charged,
    /// It has ended in another way.
    Over,
    /// It has failed, and the cause is undecided.
    Failed,
    /// Unknown yet, or postponed.
    Nothing,
}

/// Other failures at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherFailures {
    /// Another one has failed, and none has succeeded since.
    Others,
    /// No other is known to fail, but some may be about to.
    Unknown,
    /// No other has failed for long enough.
    Alone,
}

impl<K> Default for Witnesses<K> {
    fn default() -> Self {
        let state = WitnessState {
            undecided: HashMap::new(),
            failing: None,
            others_fail: false,
            charged: HashMap::new(),
            clock: 0,
            witness: 0,
            succeeded: None,
        };
        Self { stalled: AtomicBool::new(false), state: Mutex::new(state) }
    }
}

impl<K: Clone + Eq + Hash> Witnesses<K> {
    /// Begins a try, and returns its start, by which its failures are attributed. A transaction of several messages is one try.
    pub fn begin(&self) -> Began {
        let mut state = self.lock();
        state.clock += 1;
        Began { number: state.clock, witness: state.witness }
    }

    /// Records the committed results of a try, in the order in which they came about. Returns whether work goes on: one has succeeded, or
    /// none waits any more.
    pub fn record_results<'a>(
        &self,
        began: Began,
        now: Instant,
        results: impl Iterator<Item = (&'a K, TryResult)>,
    ) -> bool
    where
        K: 'a,
    {
        let mut succeeded = false;
        let mut decides_one_that_waited = false;
        // Those that have failed since the last success of this try.
        let mut failed = Vec::new();
        let mut state = self.lock();
        for (key, result) in results {
            match result {
                TryResult::Succeeded => {
                    succeeded = true;
                    failed.drain(..).for_each(|key| state.mark_witnessed(key));
                }
                TryResult::Failed => {
                    state.record_first_failure(key, now);
                    failed.push(key);
                }
                TryResult::Charged | TryResult::Over | TryResult::Nothing => {}
            }
            // Nearly always empty: then no key is looked up.
            if !state.charged.is_empty() && matches!(result, TryResult::Succeeded | TryResult::Over) {
                state.charged.remove(key);
            }
            if !state.undecided.is_empty() && !matches!(result, TryResult::Failed | TryResult::Nothing) {
                decides_one_that_waited |= state.undecided.remove(key).is_some();
            }
        }
        if succeeded {
            state.witness = state.witness.max(began.number);
            state.succeeded = Some(now);
            state.failing = None;
            state.others_fail = false;
        }
        let goes_on =
            succeeded || decides_one_that_waited && !state.undecided.values().any(|one| one.is_here);
        drop(state);
        if goes_on {
            self.stalled.store(false, Ordering::Release);
        }
        goes_on
    }

    /// Records a message's failure that may have a cause common to all messages. Returns whether others fail, too.
    pub fn record_suspected_failure(&self, key: &K, now: Instant) -> OtherFailures {
        let mut state = self.lock();
        match &state.failing {
            None => state.failing = Some(key.clone()),
            Some(first) => state.others_fail |= first != key,
        }
        let failed = state.undecided.get(key).and_then(|one| one.failed);
        let since =
            failed.map(|failure| state.succeeded.map_or(failure.at, |success| success.max(failure.at)));
        match since {
            _ if state.others_fail => OtherFailures::Others,
            Some(since) if now.saturating_duration_since(since) >= WITNESS_WAIT => OtherFailures::Alone,
            _ => OtherFailures::Unknown,
        }
    }

    /// Records a message's failure with an undecided cause.
    pub fn record_undecided_failure(&self, key: &K, now: Instant) {
        self.lock().record_first_failure(key, now);
    }

    /// Returns whether another message's try began after this message's first failure, and had succeeded when its present try (`began`)
    /// began. If a fault of all begins or ends once meanwhile, it does not explain both failures. A success that began before the first
    /// failure, or ended after the start of the present try, proves nothing.
    pub fn has_witness(&self, key: &K, began: Began, now: Instant) -> bool {
        let state = self.lock();
        let one = state.undecided.get(key).filter(|one| !one.is_forgotten(now));
        let failed = one.and_then(|one| one.failed);
        failed.is_some_and(|first| first.is_witnessed || first.number < began.witness)
    }

    /// Records that a failure with this SQLSTATE was attributed to a message.
    pub fn record_charge(&self, key: &K, code: Option<&str>) {
        let mut state = self.lock();
        if state.charged.len() >= MAX_UNDECIDED {
            state.charged.clear();
        }
        state.charged.insert(key.clone(), code.map(str::to_owned));
    }

    /// Returns whether a failure with the same SQLSTATE was attributed to the message before.
    pub fn was_charged_with(&self, key: &K, code: Option<&str>) -> bool {
        self.lock().charged.get(key).is_some_and(|before| before.as_deref() == code)
    }

    /// Records that nothing succeeds at the moment.
    pub fn record_stall(&self) {
        self.stalled.store(true, Ordering::Release);
    }

    /// Returns whether nothing succeeds at the moment.
    pub fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Acquire)
    }

    /// Leaves a message undecided. Returns the pause until its next try, from a quarter of a second, doubling, up to half a minute, and the
    /// time since which it is undecided. `has_failed`: the message has failed; if not, it waits for locks.
    pub fn postpone(&self, key: &K, now: Instant, has_failed: bool) -> (Duration, Instant) {
        let mut state = self.lock();
        if has_failed {
            state.record_first_failure(key, now);
        }
        let one = state.get_or_insert_undecided(key, now);
        let pause = Duration::from_millis(250) * 2_u32.pow(one.tries.min(7));
        one.tries += 1;
        (pause.min(Duration::from_secs(30)), one.since)
    }

    /// Records that a message has to run alone, and could not. `is_behind_another`: another message ran alone; that counts as no try for a
    /// minute, as several run one after another. Returns the time since which the message waits to run alone, and whether the try counts.
    pub fn record_wait_alone(&self, key: &K, now: Instant, is_behind_another: bool) -> (Instant, bool) {
        let mut state = self.lock();
        let alone =
            state.get_or_insert_undecided(key, now).alone.get_or_insert(WaitAlone { since: now, tries: 0 });
        let counts = !is_behind_another || now.saturating_duration_since(alone.since) >= UNCOUNTED_WAIT;
        alone.tries += u32::from(counts);
        (alone.since, counts)
    }

    /// Returns whether a message has to run alone, as far as this process knows, and has not waited for that as often as it may.
    pub fn has_to_run_alone(&self, key: &K) -> bool {
        self.lock().undecided.get(key).and_then(|one| one.alone).is_some_and(|alone| !alone.is_over())
    }

    /// Returns whether a message has waited to run alone as often as it may: it runs beside others.
    pub fn has_waited_alone(&self, key: &K) -> bool {
        self.lock().undecided.get(key).and_then(|one| one.alone).is_some_and(|alone| alone.is_over())
    }

    /// Records that a message met a lock in a try in which it ran by itself.
    pub fn record_lock(&self, key: &K, began: Began, now: Instant) {
        let mut state = self.lock();
        let locked_tries = LockedTries { since: now, tries: 0, last: 0 };
        let locked_tries = state.get_or_insert_undecided(key, now).met_locks.get_or_insert(locked_tries);
        locked_tries.tries += u32::from(locked_tries.last != began.number);
        locked_tries.last = began.number;
    }

    /// Returns whether a message has met locks for a minute, in several tries: they are not momentary.
    pub fn has_lasting_contention(&self, key: &K, now: Instant) -> bool {
        let state = self.lock();
        let one = state.undecided.get(key).filter(|one| !one.is_forgotten(now));
        let locked_tries = one.and_then(|one| one.met_locks);
        locked_tries.is_some_and(|locked_tries| {
            locked_tries.tries >= MIN_LOCKED_TRIES
                && now.saturating_duration_since(locked_tries.since) >= MIN_LASTING_CONTENTION
        })
    }

    /// Returns how often a message was left undecided.
    pub fn tries(&self, key: &K) -> u32 {
        self.lock().undecided.get(key).map_or(0, |one| one.tries)
    }

    /// Records that a message goes to the end of its queue. If it comes back to this process, any success until then is its witness, and it
    /// waits again.
    pub fn record_departure(&self, key: &K, now: Instant) {
        if let Some(one) = self.lock().undecided.get_mut(key) {
            one.is_here = false;
            one.since = now;
        }
    }

    fn lock(&self) -> MutexGuard<'_, WitnessState<K>> {
        // Every change of a field or an entry leaves it consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> WitnessState<K> {
    /// Returns the entry of an undecided message that is here; inserts it if it is missing or forgotten. Removes others if there are too
    /// many.
    fn get_or_insert_undecided(&mut self, key: &K, now: Instant) -> &mut UndecidedTry {
        // Most entries belong to messages that another process has received. Others begin again only if they are as many.
        if self.undecided.len() >= MAX_UNDECIDED {
            self.undecided.retain(|_, one| one.is_here);
            if self.undecided.len() >= MAX_UNDECIDED {
                self.undecided.clear();
            }
        }
        let fresh =
            UndecidedTry { failed: None, since: now, met_locks: None, tries: 0, is_here: true, alone: None };
        let one = self.undecided.entry(key.clone()).or_insert(fresh);
        if one.is_forgotten(now) {
            *one = fresh;
        }
        if !one.is_here {
            // The message is back from its queue: its wait begins again.
            one.since = now;
            one.is_here = true;
        }
        one
    }

    /// Records a message's first failure; keeps an earlier one.
    fn record_first_failure(&mut self, key: &K, now: Instant) {
        self.clock += 1;
        let number = self.clock;
        self.get_or_insert_undecided(key, now).failed.get_or_insert(FirstFailure {
            number,
            at: now,
            is_witnessed: false,
        });
    }

    /// Marks the first failure of a message as witnessed; does nothing if it has none.
    fn mark_witnessed(&mut self, key: &K) {
        if let Some(failed) = self.undecided.get_mut(key).and_then(|one| one.failed.as_mut()) {
            failed.is_witnessed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: TryResult = TryResult::Succeeded;

    /// Another one begins and succeeds.
    fn succeeds(witnesses: &Witnesses<&str>, key: &'static str) -> bool {
        witnesses.record_results(witnesses.begin(), Instant::now(), [(&key, DONE)].into_iter())
    }

    /// Returns whether there is a witness for a try that begins now.
    fn has_witness(witnesses: &Witnesses<&str>, key: &'static str, now: Instant) -> bool {
        witnesses.has_witness(&key, witnesses.begin(), now)
    }

    #[test]
    fn waits_to_run_alone_are_counted_by_themselves_and_those_behind_another_after_a_minute() {
        let witnesses = Witnesses::default();
        let now = Instant::now();
        for _ in 0..20 {
            // For a lock, or a key that another run holds.
            witnesses.postpone(&"one", now, false);
        }
        assert!(!witnesses.has_to_run_alone(&"one"));
        for _ in 0..100 {
            assert_eq!(witnesses.record_wait_alone(&"one", now, true), (now, false));
        }
        assert!(witnesses.has_to_run_alone(&"one") && !witnesses.has_waited_alone(&"one"));
        let later = now + UNCOUNTED_WAIT;
        for _ in 0..MAX_TRIES_ALONE / 2 {
            assert!(witnesses.has_to_run_alone(&"one"));
            assert_eq!(witnesses.record_wait_alone(&"one", now, false), (now, true));
            assert_eq!(witnesses.record_wait_alone(&"one", later, true), (now, true));
        }
        assert!(!witnesses.has_to_run_alone(&"one") && witnesses.has_waited_alone(&"one"));
    }

    #[test]
    fn only_what_succeeds_after_a_failure_is_its_witness() {
        let witnesses = Witnesses::default();
        let (bad, good) = ("bad", "good");
        assert!(succeeds(&witnesses, good));
        witnesses.postpone(&bad, Instant::now(), false);
        succeeds(&witnesses, good);
        assert!(!has_witness(&witnesses, bad, Instant::now()), "it has not failed yet");
        witnesses.postpone(&bad, Instant::now(), true);
        assert!(!has_witness(&witnesses, bad, Instant::now()), "it succeeded before");
        assert!(!has_witness(&witnesses, good, Instant::now()), "it did not fail");
        succeeds(&witnesses, good);
        assert!(has_witness(&witnesses, bad, Instant::now()));
        witnesses.record_departure(&bad, Instant::now());
        witnesses.record_results(witnesses.begin(), Instant::now(), [(&bad, TryResult::Nothing)].into_iter());
        assert!(has_witness(&witnesses, bad, Instant::now()), "it comes back");
        let now = Instant::now();
        witnesses.record_departure(&bad, now);
        let late = now + MAX_ABSENCE + Duration::from_secs(1);
        assert!(!has_witness(&witnesses, bad, late), "another process has most likely decided it");
        witnesses.postpone(&bad, late, true);
        assert!(!has_witness(&witnesses, bad, late), "it fails again");
        succeeds(&witnesses, bad);
        assert!(!has_witness(&witnesses, bad, Instant::now()), "it is decided");
    }

    #[test]
    fn a_success_that_a_fault_of_all_explains_is_no_witness() {
        let witnesses = Witnesses::default();
        let now = Instant::now();
        let before = witnesses.begin();
        witnesses.record_undecided_failure(&"bad", now);
        witnesses.record_results(before, now, [(&"good", DONE)].into_iter());
        assert!(!has_witness(&witnesses, "bad", now), "it may have run before the fault began");
        let again = witnesses.begin();
        succeeds(&witnesses, "good");
        assert!(!witnesses.has_witness(&"bad", again, now), "the fault may have ended after this try");
        assert!(has_witness(&witnesses, "bad", now));
    }

    #[test]
    fn what_succeeds_behind_it_in_a_transaction_is_a_witness() {
        let witnesses = Witnesses::default();
        let results =
            [("first", DONE), ("bad", TryResult::Failed), ("good", DONE), ("last", TryResult::Failed)];
        let results = results.iter().map(|(key, result)| (key, *result));
        witnesses.record_results(witnesses.begin(), Instant::now(), results);
        assert!(has_witness(&witnesses, "bad", Instant::now()));
        assert!(!has_witness(&witnesses, "last", Instant::now()), "a fault of all may have begun");
    }

    #[test]
    fn one_that_meets_locks_for_a_minute_persists_and_one_that_only_waits_does_not() {
        let witnesses = Witnesses::default();
        let now = Instant::now();
        witnesses.postpone(&"held", now, false);
        assert!(
            !witnesses.has_lasting_contention(&"held", now + MIN_LASTING_CONTENTION),
            "it waited untried"
        );
        let meets = |second| {
            let (began, now) = (witnesses.begin(), now + Duration::from_secs(second));
            for _ in 0..2 {
                witnesses.record_lock(&"held", began, now);
            }
            witnesses.has_lasting_contention(&"held", now)
        };
        assert!(!meets(60), "its first lock");
        assert!(!meets(150), "it waited untried again");
        witnesses.record_departure(&"held", now + Duration::from_secs(160));
        assert!(meets(200), "however far its tries are apart");
        let (began, other) = (witnesses.begin(), now + Duration::from_secs(200));
        witnesses.record_lock(&"other", began, other);
        witnesses.record_lock(&"other", witnesses.begin(), other);
        witnesses.record_lock(&"other", witnesses.begin(), other);
        assert!(!witnesses.has_lasting_contention(&"other", other + MIN_LASTING_CONTENTION / 2));
        assert!(witnesses.has_lasting_contention(&"other", other + MIN_LASTING_CONTENTION));
    }

    #[test]
    fn one_that_comes_back_from_its_queue_waits_anew() {
        let witnesses = Witnesses::default();
        let now = Instant::now();
        assert_eq!(witnesses.postpone(&"k", now, false).1, now);
        witnesses.record_departure(&"k", now + MIN_LASTING_CONTENTION);
        let back = now + MIN_LASTING_CONTENTION * 4;
        assert_eq!(witnesses.postpone(&"k", back, false).1, back);
        assert_eq!(witnesses.postpone(&"k", back + MIN_LASTING_CONTENTION, false).1, back);
        assert_eq!(witnesses.tries(&"k"), 3);
    }

    #[test]
    fn those_that_left_are_forgotten_before_those_that_wait() {
        let witnesses = Witnesses::default();
        let now = Instant::now();
        witnesses.postpone(&0, now, true);
        for number in 1..=MAX_UNDECIDED {
            witnesses.postpone(&number, now, true);
            witnesses.record_departure(&number, now);
        }
        assert_eq!((witnesses.tries(&0), witnesses.tries(&1)), (1, 0));
    }

    #[test]
    fn a_stall_is_over_with_a_success_or_when_none_waits() {
        let witnesses = Witnesses::default();
        let (one, other, good) = ("one", "other", "good");
        for bad in [&one, &other] {
            witnesses.postpone(bad, Instant::now(), true);
        }
        witnesses.record_stall();
        assert!(!witnesses.record_results(
            witnesses.begin(),
            Instant::now(),
            [(&one, TryResult::Over)].into_iter()
        ));
        assert!(witnesses.is_stalled(), "the other one still waits");
        assert!(witnesses.record_results(
            witnesses.begin(),
            Instant::now(),
            [(&other, TryResult::Over)].into_iter()
        ));
        assert!(!witnesses.is_stalled());
        witnesses.postpone(&one, Instant::now(), true);
        witnesses.record_stall();
        witnesses.record_results(witnesses.begin(), Instant::now(), [(&good, DONE)].into_iter());
        assert!(!witnesses.is_stalled());
    }

    #[test]
    fn one_is_alone_where_no_other_has_failed_since_a_success_and_after_a_while() {
        let witnesses = Witnesses::default();
        let (bad, other, good) = ("bad", "other", "good");
        let now = Instant::now();
        assert_eq!(
            witnesses.record_suspected_failure(&bad, now),
            OtherFailures::Unknown,
            "others may be about to fail"
        );
        witnesses.postpone(&bad, now, true);
        assert_eq!(witnesses.record_suspected_failure(&bad, now + WITNESS_WAIT / 2), OtherFailures::Unknown);
        assert_eq!(witnesses.record_suspected_failure(&bad, now + WITNESS_WAIT), OtherFailures::Alone);
        assert_eq!(
            witnesses.record_suspected_failure(&other, now + WITNESS_WAIT),
            OtherFailures::Others,
            "the first one failed before"
        );
        assert_eq!(witnesses.record_suspected_failure(&bad, now + WITNESS_WAIT * 9), OtherFailures::Others);
        assert!(witnesses.record_results(
            witnesses.begin(),
            now + WITNESS_WAIT * 9,
            [(&good, DONE)].into_iter()
        ));
        assert_eq!(
            witnesses.record_suspected_failure(&bad, now + WITNESS_WAIT * 9),
            OtherFailures::Unknown,
            "one has just succeeded"
        );
        assert_eq!(
            witnesses.record_suspected_failure(&bad, now + WITNESS_WAIT * 10),
            OtherFailures::Alone,
            "the other failed before that"
        );
    }

    #[test]
    fn pauses_grow_up_to_half_a_minute() {
        let witnesses = Witnesses::default();
        let pause = |_| witnesses.postpone(&"k", Instant::now(), true).0;
        let pauses: Vec<u128> = (0..9).map(pause).map(|pause| pause.as_millis()).collect();
        assert_eq!(pauses, [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
    }
}
