//! A lease store in this process's memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::Utc;
use uuid::Uuid;

use super::cells::{Cell, CellStore, Cells, ReplaceOutcome};
use super::error::StoreError;
use super::micros::to_micros;
use super::store::{Facts, Failover, StoreClock};
use oncely_core::identity::Identity;

/// A store in this process's memory: for tests, and for programs of one process that may lose all keys at exit.
pub type MemoryStore = CellStore<Memory>;

impl MemoryStore {
    /// Creates an empty store.
    #[must_use]
    pub fn in_memory(clock: MemoryClock) -> Self {
        Self::new(Memory { clock, cells: Arc::default() })
    }
}

/// The machine's clock, plus the time that a test has added. Clones share one clock.
#[derive(Clone, Debug, Default)]
pub struct MemoryClock(Arc<AtomicI64>);

impl MemoryClock {
    /// Sets the clock ahead.
    pub fn advance(&self, time: Duration) {
        self.0.fetch_add(to_micros(time), Ordering::Relaxed);
    }

    fn now(&self) -> i64 {
        Utc::now().timestamp_micros().saturating_add(self.0.load(Ordering::Relaxed))
    }
}

/// The records of a [`MemoryStore`]. Clones share one memory.
#[derive(Clone, Debug)]
pub struct Memory {
    clock: MemoryClock,
    cells: Arc<Mutex<HashMap<Identity, Cell>>>,
}

impl Memory {
    /// Removes expired records. Nothing calls it automatically.
    pub fn collect(&self) {
        let now = self.clock.now();
        self.lock().retain(|_, cell| cell.record.expires_at() > now);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Identity, Cell>> {
        // No change leaves the map inconsistent.
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cells for Memory {
    fn facts(&self) -> Facts {
        Facts { failover: Failover::Forgets, clock: StoreClock::Server }
    }

    async fn now(&self) -> Result<i64, StoreError> {
        Ok(self.clock.now())
    }

    async fn read(&self, identity: &Identity) -> Result<Option<Cell>, StoreError> {
        Ok(self.lock().get(identity).cloned())
    }

    async fn replace(
        &self,
        identity: &Identity,
        expected_version: Option<Uuid>,
        cell: &Cell,
    ) -> Result<ReplaceOutcome, StoreError> {
        let mut cells = self.lock();
        let existing = cells.get(identity);
        if existing.map(|cell| cell.version) != expected_version {
            return Ok(ReplaceOutcome::Other(existing.cloned()));
        }
        cells.insert(identity.clone(), cell.clone());
        Ok(ReplaceOutcome::Done)
    }
}
