//! A store in this process's memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::Utc;
use uuid::Uuid;

use super::cells::{Cell, CellStore, Cells, Replaced};
use super::error::StoreError;
use super::micros::micros;
use super::store::{Facts, Failover, StoreClock};
use crate::identity::Identity;

/// A store in this process's memory: for tests, and for a program that is one process and forgets with it.
pub type MemoryStore = CellStore<Memory>;

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn in_memory(clock: MemoryClock) -> Self {
        Self::new(Memory { clock, cells: Arc::default() })
    }
}

/// The machine's clock, set ahead by what a test wants; its copies are one clock.
#[derive(Clone, Debug, Default)]
pub struct MemoryClock(Arc<AtomicI64>);

impl MemoryClock {
    /// Sets it ahead.
    pub fn advance(&self, time: Duration) {
        self.0.fetch_add(micros(time), Ordering::Relaxed);
    }

    fn now(&self) -> i64 {
        Utc::now().timestamp_micros().saturating_add(self.0.load(Ordering::Relaxed))
    }
}

/// Where a [`MemoryStore`] keeps its records. Its copies are one memory.
#[derive(Clone, Debug)]
pub struct Memory {
    clock: MemoryClock,
    cells: Arc<Mutex<HashMap<Identity, Cell>>>,
}

impl Memory {
    /// Drops what nobody needs any more. Nothing does it by itself.
    pub fn collect(&self) {
        let now = self.clock.now();
        self.lock().retain(|_, cell| cell.record.expires_at() > now);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Identity, Cell>> {
        // Every change leaves the map whole.
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
        was: Option<Uuid>,
        cell: &Cell,
    ) -> Result<Replaced, StoreError> {
        let mut cells = self.lock();
        let there = cells.get(identity);
        if there.map(|cell| cell.version) != was {
            return Ok(Replaced::Other(there.cloned()));
        }
        cells.insert(identity.clone(), cell.clone());
        Ok(Replaced::Done)
    }
}
