//! Whether a consumer's messages succeed: the witnesses by which a failure is judged ([`crate::blame`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::fault::FaultClass;
use crate::identity::Identity;
use crate::outcome::Outcome;
use crate::reason::Reason;

/// What has been away for longer is decided elsewhere, most likely: if it comes back, it begins anew.
const AWAY: Duration = Duration::from_secs(600);

/// A message that waits for locks for longer than this waits for no batch.
const PERSISTS: Duration = Duration::from_secs(60);

/// Most undecided messages that are remembered.
const MOST: usize = 20_000;

/// Of one consumer, over all of its lanes.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Messages that have taken effect since the process started.
    completed: AtomicU64,
    /// Nothing has succeeded since a message failed that nobody answers for.
    stalled: AtomicBool,
    /// Messages given up as poison since the last one that took effect.
    poisoned: AtomicU32,
    /// Messages that have failed and that nobody answers for yet. As many as wait aside.
    undecided: Mutex<HashMap<Identity, Undecided>>,
}

#[derive(Clone, Copy, Debug)]
struct Undecided {
    /// What `completed` was when it failed first; `None` where it has only waited for what others hold.
    completed: Option<u64>,
    /// What it was when it first met what others hold.
    held: Option<u64>,
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

impl Progress {
    /// These outcomes are committed. Has one of the messages taken effect?
    pub(crate) fn note<'a>(&self, decided: impl Iterator<Item = (&'a Identity, &'a Outcome)>) -> bool {
        let mut completed = 0;
        let mut poisoned = 0;
        let mut decides_one_that_waited = false;
        // Nearly always empty: then no identity is looked up.
        let mut undecided = self.lock();
        for (identity, outcome) in decided {
            match outcome {
                Outcome::Undecided { .. } => continue,
                // A no is an answer: the handler works.
                Outcome::Completed { .. } | Outcome::Refused { .. } => completed += 1,
                Outcome::DeadLettered { rejection, .. } if rejection.reason == Reason::Poison => {
                    poisoned += 1
                }
                _ => {}
            }
            // One that goes to the end of its queue is as undecided as before.
            if !undecided.is_empty() && !matches!(outcome, Outcome::Postponed { .. }) {
                decides_one_that_waited |= undecided.remove(identity).is_some();
            }
        }
        let nobody_waits = decides_one_that_waited && !undecided.values().any(|one| one.is_here);
        drop(undecided);
        if nobody_waits {
            self.stalled.store(false, Ordering::Release);
        }
        if completed > 0 {
            self.completed.fetch_add(completed, Ordering::AcqRel);
            self.poisoned.store(0, Ordering::Release);
            self.stalled.store(false, Ordering::Release);
        } else if poisoned > 0 {
            self.poisoned.fetch_add(poisoned, Ordering::AcqRel);
        }
        completed > 0
    }

    /// Has another message taken effect since this one failed for the first time?
    pub(crate) fn has_witness(&self, identity: &Identity, now: Instant) -> bool {
        let undecided = self.lock();
        let one = undecided.get(identity).filter(|one| !one.is_forgotten(now));
        let first = one.and_then(|one| one.completed);
        first.is_some_and(|first| self.completed.load(Ordering::Acquire) > first)
    }

    /// Has it met locks for so long that they are not a batch's, while others succeeded?
    pub(crate) fn persists(&self, identity: &Identity, now: Instant) -> bool {
        let undecided = self.lock();
        undecided
            .get(identity)
            .filter(|one| !one.is_forgotten(now) && now.saturating_duration_since(one.since) >= PERSISTS)
            .and_then(|one| one.held)
            .is_some_and(|held| self.completed.load(Ordering::Acquire) > held)
    }

    /// Nothing succeeds at the moment.
    pub(crate) fn stall(&self) {
        self.stalled.store(true, Ordering::Release);
    }

    /// Does nothing succeed at the moment?
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Acquire)
    }

    /// Messages in a row that were given up as poison.
    pub(crate) fn poisoned(&self) -> u32 {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Nobody answers for this one's failure yet. How long it waits until it is tried again, from a quarter of a second, doubling, up
    /// to half a minute; and since when it fails.
    pub(crate) fn undecided(
        &self,
        identity: &Identity,
        now: Instant,
        class: FaultClass,
    ) -> (Duration, Instant) {
        let completed = self.completed.load(Ordering::Acquire);
        let mut undecided = self.lock();
        // Of messages that another process got. They only begin anew.
        if undecided.len() >= MOST {
            undecided.clear();
        }
        let fresh = Undecided { completed: None, held: None, since: now, tries: 0, is_here: true };
        let one = undecided.entry(identity.clone()).or_insert(fresh);
        if one.is_forgotten(now) {
            *one = fresh;
        }
        match class {
            FaultClass::Contention => one.held.get_or_insert(completed),
            _ => one.completed.get_or_insert(completed),
        };
        one.is_here = true;
        let pause = Duration::from_millis(250) * 2_u32.pow(one.tries.min(7));
        one.tries += 1;
        (pause.min(Duration::from_secs(30)), one.since)
    }

    /// How often it has been left undecided.
    pub(crate) fn tries(&self, identity: &Identity) -> u32 {
        self.lock().get(identity).map_or(0, |one| one.tries)
    }

    /// It goes to the end of its queue. If it comes back here, what succeeds until then is its witness; it then waits anew.
    pub(crate) fn leaves(&self, identity: &Identity, now: Instant) {
        if let Some(one) = self.lock().get_mut(identity) {
            one.is_here = false;
            one.since = now;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Identity, Undecided>> {
        // Changed entry by entry, each of them whole.
        self.undecided.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::IdentityPart;
    use crate::reason::Rejection;

    fn identity(key: &str) -> Identity {
        let part = |text: &str| IdentityPart::new(text.as_bytes()).unwrap();
        Identity { tenant: part("acme"), consumer: part("payments"), key: part(key) }
    }

    const DONE: Outcome = Outcome::Completed { attempt: 1, response: None };

    #[test]
    fn only_what_succeeds_after_a_failure_is_its_witness() {
        let progress = Progress::default();
        let (bad, good) = (identity("bad"), identity("good"));
        assert!(progress.note([(&good, &DONE)].into_iter()));
        progress.undecided(&bad, Instant::now(), FaultClass::Contention);
        progress.note([(&good, &DONE)].into_iter());
        assert!(!progress.has_witness(&bad, Instant::now()), "it has not failed yet");
        progress.undecided(&bad, Instant::now(), FaultClass::Environment);
        assert!(!progress.has_witness(&bad, Instant::now()), "it succeeded before");
        assert!(!progress.has_witness(&good, Instant::now()), "it did not fail");
        progress.note([(&good, &DONE)].into_iter());
        assert!(progress.has_witness(&bad, Instant::now()));
        progress.leaves(&bad, Instant::now());
        progress.note([(&bad, &Outcome::Postponed { delay: Duration::ZERO })].into_iter());
        assert!(progress.has_witness(&bad, Instant::now()), "it comes back");
        let now = Instant::now();
        progress.leaves(&bad, now);
        let late = now + AWAY + Duration::from_secs(1);
        assert!(!progress.has_witness(&bad, late), "another process has most likely decided it");
        progress.undecided(&bad, late, FaultClass::Environment);
        assert!(!progress.has_witness(&bad, late), "it fails anew");
        progress.note([(&bad, &DONE)].into_iter());
        assert!(!progress.has_witness(&bad, Instant::now()), "it is decided");
    }

    #[test]
    fn locks_persist_where_others_succeed_for_a_minute() {
        let progress = Progress::default();
        let (held, good) = (identity("held"), identity("good"));
        let began = Instant::now();
        let later = began + PERSISTS;
        progress.undecided(&held, began, FaultClass::Contention);
        assert!(!progress.persists(&held, later), "nothing has succeeded since");
        progress.note([(&good, &DONE)].into_iter());
        assert!(!progress.persists(&held, began), "a moment");
        assert!(progress.persists(&held, later) && !progress.persists(&good, later));
    }

    #[test]
    fn a_stall_is_over_with_a_success_or_when_nobody_waits() {
        let progress = Progress::default();
        let (one, other, good) = (identity("one"), identity("other"), identity("good"));
        let dead = Outcome::rejected(Rejection::new(Reason::Parked, "x"));
        for bad in [&one, &other] {
            progress.undecided(bad, Instant::now(), FaultClass::Environment);
        }
        progress.stall();
        progress.note([(&one, &dead)].into_iter());
        assert!(progress.is_stalled(), "the other one still waits");
        progress.note([(&other, &dead)].into_iter());
        assert!(!progress.is_stalled());
        progress.undecided(&one, Instant::now(), FaultClass::Environment);
        progress.stall();
        progress.note([(&good, &DONE)].into_iter());
        assert!(!progress.is_stalled());
    }

    #[test]
    fn a_success_ends_a_streak_of_poison() {
        let progress = Progress::default();
        let poison = Outcome::rejected(Rejection::new(Reason::Poison, "x"));
        let key = identity("k");
        assert!(!progress.note([(&key, &poison), (&key, &poison)].into_iter()));
        assert_eq!(progress.poisoned(), 2);
        progress.note([(&key, &poison), (&key, &DONE)].into_iter());
        assert_eq!(progress.poisoned(), 0);
    }

    #[test]
    fn pauses_grow_up_to_half_a_minute() {
        let progress = Progress::default();
        let pause = |_| progress.undecided(&identity("k"), Instant::now(), FaultClass::Environment).0;
        let pauses: Vec<u128> = (0..9).map(pause).map(|pause| pause.as_millis()).collect();
        assert_eq!(pauses, [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
    }
}
