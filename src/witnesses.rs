//! Who succeeds and who fails of what a consumer's lanes, or a relay's, have tried: the witnesses by which a failure is judged
//! ([`crate::blame`]).

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What has been away for longer is decided elsewhere, most likely: if it comes back, it begins again.
const AWAY: Duration = Duration::from_secs(600);

/// Most undecided ones that are remembered.
const MOST: usize = 20_000;

/// One that meets locks for longer than this meets those of no batch.
const PERSISTS: Duration = Duration::from_secs(60);

/// For how long one that fails while no other one is to be seen waits for one: by then a fault that strikes all has struck another.
pub(crate) const HEARING: Duration = Duration::from_secs(1);

/// Of one consumer, or of a relay's events, over all lanes of a process. `K` names what is tried.
#[derive(Debug)]
pub(crate) struct Witnesses<K> {
    /// How many have succeeded since the process started.
    succeeded: AtomicU64,
    /// Nothing has succeeded since one failed that is not judged yet.
    stalled: AtomicBool,
    state: Mutex<State<K>>,
}

#[derive(Debug)]
struct State<K> {
    /// Those that have failed and are not judged yet. As many as wait.
    undecided: HashMap<K, Undecided>,
    /// The first one that has failed since the last success.
    failing: Option<K>,
    /// Another one has failed, too.
    others_fail: bool,
    /// With which SQLSTATE those were charged last whose keys don't tell (of runs under leases).
    charged: HashMap<K, Option<String>>,
}

#[derive(Clone, Copy, Debug)]
struct Undecided {
    /// What `succeeded` was when it failed first, and when that was; `None` where it has only waited for what others hold.
    failed: Option<(u64, Instant)>,
    since: Instant,
    tries: u32,
    /// It waits in this process; else it has gone to the end of its queue.
    is_here: bool,
}

impl Undecided {
    fn is_forgotten(&self, now: Instant) -> bool {
        !self.is_here && now.saturating_duration_since(self.since) > AWAY
    }
}

/// What a try has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// It has taken effect, or has arrived.
    Succeeded,
    /// It answers for its failure, and is tried again.
    Charged,
    /// It is over in another way.
    Over,
    /// Nothing is known yet, or it is put off.
    Nothing,
}

/// Who else fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    /// Another one has failed, and none has succeeded since.
    Others,
    /// None that is known, but others may be about to.
    Unknown,
    /// None, for long enough to be seen.
    Alone,
}

impl<K> Default for Witnesses<K> {
    fn default() -> Self {
        let state =
            State { undecided: HashMap::new(), failing: None, others_fail: false, charged: HashMap::new() };
        Self { succeeded: AtomicU64::new(0), stalled: AtomicBool::new(false), state: Mutex::new(state) }
    }
}

impl<K: Clone + Eq + Hash> Witnesses<K> {
    /// This is committed. Does it go on: has one succeeded, or does none wait any more?
    pub(crate) fn note<'a>(&self, decided: impl Iterator<Item = (&'a K, Said)>) -> bool
    where
        K: 'a,
    {
        let mut succeeded = 0;
        let mut decides_one_that_waited = false;
        let mut state = self.lock();
        for (key, said) in decided {
            succeeded += u64::from(said == Said::Succeeded);
            // Nearly always empty: then no key is looked up.
            if !state.charged.is_empty() && matches!(said, Said::Succeeded | Said::Over) {
                state.charged.remove(key);
            }
            if !state.undecided.is_empty() && said != Said::Nothing {
                decides_one_that_waited |= state.undecided.remove(key).is_some();
            }
        }
        if succeeded > 0 {
            self.succeeded.fetch_add(succeeded, Ordering::AcqRel);
            state.failing = None;
            state.others_fail = false;
        }
        let goes_on =
            succeeded > 0 || decides_one_that_waited && !state.undecided.values().any(|one| one.is_here);
        drop(state);
        if goes_on {
            self.stalled.store(false, Ordering::Release);
        }
        goes_on
    }

    /// This one fails, by an error that others may have as well: who else fails?
    pub(crate) fn fails(&self, key: &K, now: Instant) -> Company {
        let mut state = self.lock();
        match &state.failing {
            None => state.failing = Some(key.clone()),
            Some(first) => state.others_fail |= first != key,
        }
        let failed = state.undecided.get(key).and_then(|one| one.failed);
        match failed {
            _ if state.others_fail => Company::Others,
            Some((_, at)) if now.saturating_duration_since(at) >= HEARING => Company::Alone,
            _ => Company::Unknown,
        }
    }

    /// Has another one succeeded since this one failed for the first time?
    pub(crate) fn has_witness(&self, key: &K, now: Instant) -> bool {
        let state = self.lock();
        let one = state.undecided.get(key).filter(|one| !one.is_forgotten(now));
        let failed = one.and_then(|one| one.failed);
        failed.is_some_and(|(first, _)| self.succeeded.load(Ordering::Acquire) > first)
    }

    /// This one was charged with a failure.
    pub(crate) fn charged(&self, key: &K, code: Option<&str>) {
        let mut state = self.lock();
        if state.charged.len() >= MOST {
            state.charged.clear();
        }
        state.charged.insert(key.clone(), code.map(str::to_owned));
    }

    /// Was this one charged with the same SQLSTATE before?
    pub(crate) fn was_charged_with(&self, key: &K, code: Option<&str>) -> bool {
        self.lock().charged.get(key).is_some_and(|before| before.as_deref() == code)
    }

    /// Nothing succeeds at the moment.
    pub(crate) fn stall(&self) {
        self.stalled.store(true, Ordering::Release);
    }

    /// Does nothing succeed at the moment?
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Acquire)
    }

    /// Nothing answers for this one yet. How long it waits until it is tried again, from a quarter of a second, doubling, up to half a
    /// minute; and since when it fails. `has_failed`: else it waits for what others hold.
    pub(crate) fn undecided(&self, key: &K, now: Instant, has_failed: bool) -> (Duration, Instant) {
        let succeeded = self.succeeded.load(Ordering::Acquire);
        let mut state = self.lock();
        // Of those that another process got. They only begin again.
        if state.undecided.len() >= MOST {
            state.undecided.clear();
        }
        let fresh = Undecided { failed: None, since: now, tries: 0, is_here: true };
        let one = state.undecided.entry(key.clone()).or_insert(fresh);
        if one.is_forgotten(now) {
            *one = fresh;
        }
        if has_failed {
            one.failed.get_or_insert((succeeded, now));
        }
        one.is_here = true;
        let pause = Duration::from_millis(250) * 2_u32.pow(one.tries.min(7));
        one.tries += 1;
        (pause.min(Duration::from_secs(30)), one.since)
    }

    /// Has this one waited for so long that what it met is no matter of moments?
    pub(crate) fn persists(&self, key: &K, now: Instant) -> bool {
        let state = self.lock();
        let one = state.undecided.get(key).filter(|one| !one.is_forgotten(now));
        one.is_some_and(|one| now.saturating_duration_since(one.since) >= PERSISTS)
    }

    /// How often it has been left undecided.
    pub(crate) fn tries(&self, key: &K) -> u32 {
        self.lock().undecided.get(key).map_or(0, |one| one.tries)
    }

    /// It goes to the end of its queue. If it comes back here, what succeeds until then is its witness; it then waits again.
    pub(crate) fn leaves(&self, key: &K, now: Instant) {
        if let Some(one) = self.lock().undecided.get_mut(key) {
            one.is_here = false;
            one.since = now;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        // Changed field by field and entry by entry, each of them whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: Said = Said::Succeeded;

    #[test]
    fn only_what_succeeds_after_a_failure_is_its_witness() {
        let witnesses = Witnesses::default();
        let (bad, good) = ("bad", "good");
        assert!(witnesses.note([(&good, DONE)].into_iter()));
        witnesses.undecided(&bad, Instant::now(), false);
        witnesses.note([(&good, DONE)].into_iter());
        assert!(!witnesses.has_witness(&bad, Instant::now()), "it has not failed yet");
        witnesses.undecided(&bad, Instant::now(), true);
        assert!(!witnesses.has_witness(&bad, Instant::now()), "it succeeded before");
        assert!(!witnesses.has_witness(&good, Instant::now()), "it did not fail");
        witnesses.note([(&good, DONE)].into_iter());
        assert!(witnesses.has_witness(&bad, Instant::now()));
        witnesses.leaves(&bad, Instant::now());
        witnesses.note([(&bad, Said::Nothing)].into_iter());
        assert!(witnesses.has_witness(&bad, Instant::now()), "it comes back");
        let now = Instant::now();
        witnesses.leaves(&bad, now);
        let late = now + AWAY + Duration::from_secs(1);
        assert!(!witnesses.has_witness(&bad, late), "another process has most likely decided it");
        witnesses.undecided(&bad, late, true);
        assert!(!witnesses.has_witness(&bad, late), "it fails again");
        witnesses.note([(&bad, DONE)].into_iter());
        assert!(!witnesses.has_witness(&bad, Instant::now()), "it is decided");
    }

    #[test]
    fn one_that_waits_for_a_minute_persists() {
        let witnesses = Witnesses::default();
        let now = Instant::now();
        assert!(!witnesses.persists(&"held", now + PERSISTS));
        witnesses.undecided(&"held", now, false);
        assert!(!witnesses.persists(&"held", now) && witnesses.persists(&"held", now + PERSISTS));
    }

    #[test]
    fn a_stall_is_over_with_a_success_or_when_none_waits() {
        let witnesses = Witnesses::default();
        let (one, other, good) = ("one", "other", "good");
        for bad in [&one, &other] {
            witnesses.undecided(bad, Instant::now(), true);
        }
        witnesses.stall();
        assert!(!witnesses.note([(&one, Said::Over)].into_iter()));
        assert!(witnesses.is_stalled(), "the other one still waits");
        assert!(witnesses.note([(&other, Said::Over)].into_iter()));
        assert!(!witnesses.is_stalled());
        witnesses.undecided(&one, Instant::now(), true);
        witnesses.stall();
        witnesses.note([(&good, DONE)].into_iter());
        assert!(!witnesses.is_stalled());
    }

    #[test]
    fn one_is_alone_where_no_other_has_failed_since_a_success_and_after_a_while() {
        let witnesses = Witnesses::default();
        let (bad, other, good) = ("bad", "other", "good");
        let now = Instant::now();
        assert_eq!(witnesses.fails(&bad, now), Company::Unknown, "others may be about to fail");
        witnesses.undecided(&bad, now, true);
        assert_eq!(witnesses.fails(&bad, now + HEARING / 2), Company::Unknown);
        assert_eq!(witnesses.fails(&bad, now + HEARING), Company::Alone);
        assert_eq!(witnesses.fails(&other, now + HEARING), Company::Others, "the first one failed before");
        assert_eq!(witnesses.fails(&bad, now + HEARING * 9), Company::Others);
        assert!(witnesses.note([(&good, DONE)].into_iter()));
        assert_eq!(witnesses.fails(&bad, now + HEARING * 9), Company::Alone, "the other failed before that");
    }

    #[test]
    fn pauses_grow_up_to_half_a_minute() {
        let witnesses = Witnesses::default();
        let pause = |_| witnesses.undecided(&"k", Instant::now(), true).0;
        let pauses: Vec<u128> = (0..9).map(pause).map(|pause| pause.as_millis()).collect();
        assert_eq!(pauses, [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
    }
}
