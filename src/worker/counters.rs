//! What a consumer has done since the process started.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::outcome::{DuplicateSource, Outcome};

/// Counts settled deliveries by what became of them.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    completed: AtomicU64,
    duplicates_mirror: AtomicU64,
    duplicates_postgres: AtomicU64,
    duplicates_batch: AtomicU64,
    retried: AtomicU64,
    postponed: AtomicU64,
    dead_lettered: AtomicU64,
    outages: AtomicU64,
    fallbacks: AtomicU64,
}

impl Counters {
    pub(crate) fn settled(&self, outcome: &Outcome) {
        let counter = match outcome {
            Outcome::Completed { .. } => &self.completed,
            Outcome::Duplicate(DuplicateSource::Mirror) => &self.duplicates_mirror,
            Outcome::Duplicate(DuplicateSource::Postgres) => &self.duplicates_postgres,
            Outcome::Duplicate(DuplicateSource::Batch) => &self.duplicates_batch,
            Outcome::Retried { .. } => &self.retried,
            Outcome::Postponed { .. } => &self.postponed,
            // It is not settled.
            Outcome::Undecided { .. } => return,
            Outcome::DeadLettered { .. } => &self.dead_lettered,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// PostgreSQL was away, or refused to work for a reason that is no message's.
    pub(crate) fn outage(&self) {
        self.outages.fetch_add(1, Ordering::Relaxed);
    }

    /// A batch ran a second time, each message by itself.
    pub(crate) fn fallback(&self) {
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
    }
}

/// One line for the log: `completed 12, duplicates 3 (mirror 1, postgres 2, batch 0), retried 0, dead-lettered 0`.
impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (mirror, postgres, batch) =
            (get(&self.duplicates_mirror), get(&self.duplicates_postgres), get(&self.duplicates_batch));
        write!(
            f,
            "completed {}, duplicates {} (mirror {mirror}, postgres {postgres}, batch {batch}), retried {}, postponed {}, \
             dead-lettered {}, batches repeated one by one {}, outages {}",
            get(&self.completed),
            mirror + postgres + batch,
            get(&self.retried),
            get(&self.postponed),
            get(&self.dead_lettered),
            get(&self.fallbacks),
            get(&self.outages)
        )
    }
}
