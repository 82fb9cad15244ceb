//! What this process has last written of the keys that it holds, so that it need not read them before it writes again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::identity::Identity;

/// More keys than a process holds. What is beyond is read again: runs that ended without a word have left theirs behind.
const MOST: usize = 10_000;

/// Cells (`T`) as they were written last, of keys that are held. Perhaps they stand no longer so.
#[derive(Clone, Debug)]
pub(super) struct Recent<T>(Arc<Mutex<HashMap<Identity, T>>>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Recent<T> {
    pub(super) fn take(&self, identity: &Identity) -> Option<T> {
        self.lock().remove(identity)
    }

    pub(super) fn put(&self, identity: &Identity, cell: T) {
        let mut cells = self.lock();
        if cells.len() >= MOST {
            cells.clear();
        }
        cells.insert(identity.clone(), cell);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Identity, T>> {
        // Every change leaves the map whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
