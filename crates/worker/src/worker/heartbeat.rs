//! The consumers of a worker as a member with a heartbeat: they obey pauses, take new keys and report their counts.

use std::sync::Arc;

use super::shared::ConsumerContext;
use oncely_postgres::{ConsumerStats, Pause, Secrets};
use oncely_process::heartbeat::{Member, Totals};

/// All consumers of a worker, as a member with a heartbeat.
pub(super) struct WorkerMember(pub(super) Vec<Arc<ConsumerContext>>);

impl Member for WorkerMember {
    const OBEYS_PAUSES: bool = true;

    fn set_pauses(&self, pauses: Vec<Pause>) {
        for shared in &self.0 {
            let name = shared.consumer.name.as_str();
            shared.gate.set_pause(pauses.iter().find(|pause| pause.consumer == name).cloned());
        }
    }

    fn set_secrets(&self, secrets: &Secrets) {
        // All consumers of a process have the same.
        if let Some(shared) = self.0.first() {
            shared.keys.replace(secrets);
        }
    }

    /// Returns the consumers' counts for the heartbeat; never `None`.
    fn totals(&self) -> Option<Totals> {
        Some(Totals::Worker(self.0.iter().map(|shared| to_stats(shared)).collect()))
    }
}

/// Returns a consumer's counts since the process started.
fn to_stats(shared: &ConsumerContext) -> ConsumerStats {
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let counts = shared.counters.snapshot();
    ConsumerStats {
        consumer: shared.consumer.name.as_str().to_owned(),
        at: shared.clock.now(),
        delivered: number(counts.delivered),
        completed: number(counts.completed),
        refused: number(counts.refused),
        duplicates: number(counts.duplicates()),
        retried: number(counts.retried),
        postponed: number(counts.postponed),
        dead_lettered: number(counts.dead_lettered),
        fallbacks: number(counts.fallbacks),
        outages: number(counts.outages),
        durations: shared.counters.durations().map(number).to_vec(),
    }
}
