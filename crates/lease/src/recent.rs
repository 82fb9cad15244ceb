//! Caches this process's last writes of the keys that it holds, so that it need not read them before the next write.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use oncely_core::identity::Identity;

/// More keys than a process holds. Above it the cache is cleared and keys are read again; crashed runs leave their entries behind.
const MAX_KEYS: usize = 10_000;

/// The last written cells (`T`) of held keys. They may have been replaced since.
#[derive(Clone, Debug)]
pub(super) struct RecentCells<T>(Arc<Mutex<HashMap<Identity, T>>>);

impl<T> Default for RecentCells<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> RecentCells<T> {
    pub(super) fn take(&self, identity: &Identity) -> Option<T> {
        self.lock().remove(identity)
    }

    pub(super) fn put(&self, identity: &Identity, cell: T) {
        let mut cells = self.lock();
        if cells.len() >= MAX_KEYS {
            cells.clear();
        }
        cells.insert(identity.clone(), cell);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Identity, T>> {
        // No change leaves the map inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
