//! What a person may have a few of at the same time, and all together some more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Turns that are taken.
pub(crate) struct Turns {
    each: usize,
    all: usize,
    taken: Mutex<HashMap<String, usize>>,
}

/// One of them; dropped, it is free again.
pub(crate) struct Turn {
    turns: Arc<Turns>,
    person: String,
}

impl Turns {
    /// So many for each person, and so many for all.
    pub(crate) fn new(each: usize, all: usize) -> Arc<Self> {
        Arc::new(Self { each, all, taken: Mutex::default() })
    }

    /// One for a person; `None` where they, or all together, have as many as they may.
    pub(crate) fn take(self: &Arc<Self>, person: &str) -> Option<Turn> {
        let mut taken = self.lock();
        let own = taken.get(person).copied().unwrap_or(0);
        if own >= self.each || taken.values().sum::<usize>() >= self.all {
            return None;
        }
        taken.insert(person.to_owned(), own + 1);
        Some(Turn { turns: Arc::clone(self), person: person.to_owned() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        // Every change leaves the map whole.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
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
        let turns = Turns::new(2, 3);
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
