//! Counters of a consumer since the process started.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use oncely_core::durations::{BUCKET_COUNT, bucket};
use oncely_core::outcome::{DuplicateSource, Outcome};
use oncely_core::units::total;
use oncely_process::metrics::ConsumerMetrics;

/// Counters of settled deliveries by outcome.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) metrics: ConsumerMetrics,
    delivered: AtomicU64,
    durations: [AtomicU64; BUCKET_COUNT],
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
    /// Messages sent to another node than the one that keeps their tenant, and to that one.
    routes: [AtomicU64; 2],
}

/// Counters at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeliveryCounts {
    pub(crate) delivered: u64,
    pub(crate) completed: u64,
    pub(crate) refused: u64,
    pub duplicates_mirror: u64,
    pub(crate) duplicates_postgres: u64,
    pub(crate) duplicates_batch: u64,
    pub retried: u64,
    pub(crate) postponed: u64,
    pub dead_lettered: u64,
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
            routes: Default::default(),
        }
    }

    /// Counts a delivery by the broker.
    pub(crate) fn count_delivery(&self, redelivered: bool) {
        self.metrics.count_delivery(redelivered);
        self.delivered.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a delivery that was sent to the node that keeps its tenant, or to another one.
    pub(crate) fn count_route(&self, is_to_owner: bool) {
        self.metrics.count_route(is_to_owner);
        self.routes[usize::from(is_to_owner)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of deliveries that were sent to another node than the one that keeps their tenant, and to that one.
    pub(crate) fn routes(&self) -> [u64; 2] {
        self.routes.each_ref().map(|route| route.load(Ordering::Relaxed))
    }

    /// Counts a settled delivery; `duration`: since it arrived.
    pub(crate) fn count_settled(&self, outcome: &Outcome, duration: Duration) {
        self.metrics.count_settled(outcome, duration);
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
        self.durations[bucket(duration)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the numbers of settled deliveries by the bucket of their duration.
    pub(crate) fn durations(&self) -> [u64; BUCKET_COUNT] {
        std::array::from_fn(|bucket| self.durations[bucket].load(Ordering::Relaxed))
    }

    /// Counts an outage: PostgreSQL was away, or refused to work for a reason that no message caused.
    pub(crate) fn count_outage(&self) {
        self.metrics.outages.increment(1);
        self.outages.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failed batch: its messages are tried in parts or one by one.
    pub(crate) fn count_fallback(&self) {
        self.metrics.fallbacks.increment(1);
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the present counts.
    pub(crate) fn snapshot(&self) -> DeliveryCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DeliveryCounts {
            delivered: load(&self.delivered),
            completed: load(&self.completed),
            refused: load(&self.refused),
            duplicates_mirror: load(&self.duplicates_mirror),
            duplicates_postgres: load(&self.duplicates_postgres),
            duplicates_batch: load(&self.duplicates_batch),
            retried: load(&self.retried),
            postponed: load(&self.postponed),
            dead_lettered: load(&self.dead_lettered),
            fallbacks: load(&self.fallbacks),
            outages: load(&self.outages),
        }
    }
}

impl DeliveryCounts {
    /// Returns the number of messages that the handler has completed or refused.
    pub fn answers(&self) -> u64 {
        total([self.completed, self.refused])
    }

    /// Returns the number of duplicates from all sources.
    pub fn duplicates(&self) -> u64 {
        total([self.duplicates_mirror, self.duplicates_postgres, self.duplicates_batch])
    }
}

/// One line for the log.
impl fmt::Display for DeliveryCounts {
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
