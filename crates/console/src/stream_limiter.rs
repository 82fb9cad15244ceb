//! Limits of simultaneous uses, per user and in total.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The turns in use.
pub(crate) struct StreamLimiter {
    each: usize,
    all: usize,
    taken: Mutex<HashMap<String, usize>>,
}

/// A turn, freed when dropped.
pub(crate) struct StreamPermit {
    turns: Arc<StreamLimiter>,
    person: String,
}

impl StreamLimiter {
    /// Creates the limits per user and in total.
    pub(crate) fn new(each: usize, all: usize) -> Arc<Self> {
        Arc::new(Self { each, all, taken: Mutex::default() })
    }

    /// Takes a turn for a user; `None` if the user's limit or the total is reached.
    pub(crate) fn take(self: &Arc<Self>, person: &str) -> Option<StreamPermit> {
        let mut taken = self.lock();
        let own = taken.get(person).copied().unwrap_or(0);
        if own >= self.each || taken.values().sum::<usize>() >= self.all {
            return None;
        }
        taken.insert(person.to_owned(), own + 1);
        Some(StreamPermit { turns: Arc::clone(self), person: person.to_owned() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        // A panic can't leave the map inconsistent.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut taken = self.turns.lock();
        if let Some(own) = taken.get_mut(&self.person) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.person);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_more_than_their_share() {
        let turns = StreamLimiter::new(2, 3);
        let (first, second) = (turns.take("ana").unwrap(), turns.take("ana").unwrap());
        assert!(turns.take("ana").is_none());
        let third = turns.take("bo").unwrap();
        assert!(turns.take("bo").is_none(), "all are taken");
        drop(first);
        assert!(turns.take("bo").is_some() && turns.take("ana").is_some());
        drop((second, third));
        assert!(turns.lock().is_empty());
    }
}
