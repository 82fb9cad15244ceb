//! A store of cells: what it asks its database.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oncely::identity::Identity;
use oncely::lease::{
    Cell, CellStore, Cells, Facts, LeaseStore as _, Memory, MemoryClock, MemoryStore, RenewOutcome,
    ReplaceOutcome, StepStore as _, StoreError,
};
use uuid::Uuid;

use super::{LEASE, hold, identity};

/// Counts what is asked of a store's cells.
#[derive(Clone)]
struct Counted {
    cells: Memory,
    reads: Arc<AtomicUsize>,
    writes: Arc<AtomicUsize>,
}

impl Counted {
    fn take(&self) -> (usize, usize) {
        (self.writes.swap(0, Ordering::Relaxed), self.reads.swap(0, Ordering::Relaxed))
    }
}

impl Cells for Counted {
    fn facts(&self) -> Facts {
        self.cells.facts()
    }

    async fn now(&self) -> Result<i64, StoreError> {
        self.cells.now().await
    }

    async fn read(&self, identity: &Identity) -> Result<Option<Cell>, StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.cells.read(identity).await
    }

    async fn replace(
        &self,
        identity: &Identity,
        was: Option<Uuid>,
        cell: &Cell,
    ) -> Result<ReplaceOutcome, StoreError> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.cells.replace(identity, was, cell).await
    }
}

#[tokio::test]
async fn whoever_holds_a_key_writes_without_reading_and_believes_only_what_stands_there() {
    let clock = MemoryClock::default();
    let cells = MemoryStore::in_memory(clock.clone()).cells().clone();
    let counted = Counted { cells, reads: Arc::default(), writes: Arc::default() };
    // Two processes on one database.
    let [store, other] = [(); 2].map(|()| CellStore::new(counted.clone()));
    let key = identity("order 1");
    let held = hold(&store, &key, "first").await;
    store.renew(std::slice::from_ref(&held), LEASE).await.unwrap();
    store.complete(&held, None).await.unwrap();
    assert_eq!(counted.take(), (3, 0), "writes and reads of claim, renewal and completion");
    // Said again: nothing that was written last is believed.
    store.complete(&held, None).await.unwrap();
    assert_eq!(counted.take(), (0, 1));

    let key = identity("order 2");
    let held = hold(&store, &key, "first").await;
    clock.advance(LEASE * 2);
    let heir = hold(&other, &key, "second").await;
    counted.take();
    // What it has written last still says that it holds the key: the write finds out.
    assert!(matches!(store.complete(&held, None).await, Err(StoreError::Lost)));
    assert_eq!(counted.take(), (1, 0));
    assert_eq!(store.renew(&[held], LEASE).await.unwrap(), [RenewOutcome::Lost]);
    other.complete(&heir, None).await.unwrap();
    assert_eq!(counted.take(), (1, 1));
}
