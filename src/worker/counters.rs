//! What a consumer has done since the process started.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::durations::{BUCKETS, bucket};
use crate::metrics::ConsumerMetrics;
use crate::outcome::{DuplicateSource, Outcome};
use crate::units::total;

/// Counts settled deliveries by what became of them.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) metrics: ConsumerMetrics,
    delivered: AtomicU64,
    durations: [AtomicU64; BUCKETS],
    completed: AtomicU64,
    refused: AtomicU64,
    duplicates_mirror: AtomicU64,
    duplicates_postgres: AtomicU64,
    duplicates_batch: AtomicU64,
    retried: AtomicU64,
    postponed: AtomicU64,
    dead_lettered: AtomicU64,
    outages: AtomicU64,
    fallbacks: AtomicU64,
}

/// Counters at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Counts {
    pub(crate) delivered: u64,
    pub(crate) completed: u64,
    pub(crate) refused: u64,
    pub(crate) duplicates_mirror: u64,
    pub(crate) duplicates_postgres: u64,
    pub(crate) duplicates_batch: u64,
    pub(crate) retried: u64,
    pub(crate) postponed: u64,
    pub(crate) dead_lettered: u64,
    pub(crate) fallbacks: u64,
    pub(crate) outages: u64,
}

impl Counters {
    pub(crate) fn new(metrics: ConsumerMetrics) -> Self {
        Self {
            metrics,
            delivered: AtomicU64::default(),
            durations: Default::default(),
            completed: AtomicU64::default(),
            refused: AtomicU64::default(),
            duplicates_mirror: AtomicU64::default(),
            duplicates_postgres: AtomicU64::default(),
            duplicates_batch: AtomicU64::default(),
            retried: AtomicU64::default(),
            postponed: AtomicU64::default(),
            dead_lettered: AtomicU64::default(),
            outages: AtomicU64::default(),
            fallbacks: AtomicU64::default(),
        }
    }

    /// The broker has handed over a delivery.
    pub(crate) fn delivered(&self, redelivered: bool) {
        self.metrics.delivered(redelivered);
        self.delivered.fetch_add(1, Ordering::Relaxed);
    }

    /// A delivery is settled, so long after it arrived.
    pub(crate) fn settled(&self, outcome: &Outcome, took: Duration) {
        self.metrics.settled(outcome, took);
        let counter = match outcome {
            Outcome::Completed { .. } => &self.completed,
            Outcome::Refused { .. } => &self.refused,
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
        self.durations[bucket(took)].fetch_add(1, Ordering::Relaxed);
    }

    /// By bucket: how many deliveries were settled within how long.
    pub(crate) fn durations(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|bucket| self.durations[bucket].load(Ordering::Relaxed))
    }

    /// PostgreSQL was away, or refused to work for a reason that is no message's.
    pub(crate) fn outage(&self) {
        self.metrics.outages.increment(1);
        self.outages.fetch_add(1, Ordering::Relaxed);
    }

    /// A batch failed: its messages are told apart, in parts or one by one.
    pub(crate) fn fallback(&self) {
        self.metrics.fallbacks.increment(1);
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            delivered: get(&self.delivered),
            completed: get(&self.completed),
            refused: get(&self.refused),
            duplicates_mirror: get(&self.duplicates_mirror),
            duplicates_postgres: get(&self.duplicates_postgres),
            duplicates_batch: get(&self.duplicates_batch),
            retried: get(&self.retried),
            postponed: get(&self.postponed),
            dead_lettered: get(&self.dead_lettered),
            fallbacks: get(&self.fallbacks),
            outages: get(&self.outages),
        }
    }
}

impl Counts {
    /// Answers of the handler.
    pub(crate) fn done(&self) -> u64 {
        total([self.completed, self.refused])
    }

    pub(crate) fn duplicates(&self) -> u64 {
        total([self.duplicates_mirror, self.duplicates_postgres, self.duplicates_batch])
    }
}

/// One line for the log.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // By name: a counter that is left out here is an unused variable.
        let Self {
            delivered,
            completed,
            refused,
            duplicates_mirror,
            duplicates_postgres,
            duplicates_batch,
            retried,
            postponed,
            dead_lettered,
            fallbacks,
            outages,
        } = self;
        let duplicates = self.duplicates();
        write!(
            f,
            "delivered {delivered}, completed {completed}, refused {refused}, duplicates {duplicates} (mirror {duplicates_mirror}, postgres \
             {duplicates_postgres}, batch {duplicates_batch}), retried {retried}, postponed {postponed}, dead-lettered \
             {dead_lettered}, batches told apart {fallbacks}, outages {outages}"
        )
    }
}
