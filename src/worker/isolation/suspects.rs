//! Redelivered messages, told apart by what they may have done: one of them may have killed the process that had it.

use chrono::{DateTime, Utc};

use super::permit::Isolation;
use crate::decide::{KeyDecision, KeyRecord, OnConflict, Suspicion, decide, suspicion, wait};
use crate::worker::candidate::Candidate;

/// The messages of a batch by how they may run; positions in the batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Not redelivered, or no longer to be run.
    pub(crate) free: Vec<usize>,
    /// Together, as suspects.
    pub(crate) group: Vec<usize>,
    /// One after another, each alone in the process.
    pub(crate) alone: Vec<usize>,
    /// Not any more, with the number of runs that nobody reported.
    pub(crate) given_up: Vec<(usize, u32)>,
    /// Not now: another session runs a copy of them.
    pub(crate) running: Vec<usize>,
}

/// What of a batch runs next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Nothing of it runs any more; with the number of runs that nobody reported.
    GivenUp(Vec<(usize, u32)>),
    /// Another session runs a copy of these.
    Running(Vec<usize>),
    /// These, isolated so.
    Run(Isolation, Vec<usize>),
}

impl Parts {
    /// The innocent first; what may kill the process last, one at a time.
    pub(crate) fn next(self) -> Part {
        if !self.given_up.is_empty() {
            Part::GivenUp(self.given_up)
        } else if !self.running.is_empty() {
            Part::Running(self.running)
        } else if !self.free.is_empty() {
            Part::Run(Isolation::None, self.free)
        } else if !self.group.is_empty() {
            Part::Run(Isolation::Marked, self.group)
        } else {
            Part::Run(Isolation::Exclusive, self.alone.into_iter().take(1).collect())
        }
    }
}

/// Is there anything to tell apart?
pub(crate) fn has_suspects(work: &[&Candidate]) -> bool {
    work.iter().any(|candidate| candidate.delivery.message.redelivered)
}

/// Tells them apart by what PostgreSQL knows of their keys.
pub(crate) fn tell_apart(
    work: &[&Candidate],
    records: &[Option<KeyRecord>],
    on_conflict: OnConflict,
    max_crashes: u32,
    now: DateTime<Utc>,
) -> Parts {
    let mut parts = Parts::default();
    for (index, (candidate, record)) in work.iter().zip(records).enumerate() {
        let may_run = record.as_ref().is_none_or(|record| {
            decide(record, candidate.fingerprint.as_ref(), on_conflict) == KeyDecision::Retake
                && wait(record, now).is_none()
        });
        if !candidate.delivery.message.redelivered || !may_run {
            parts.free.push(index);
            continue;
        }
        // A run that lives is no death, and two runs of one key would only wait for each other.
        if record.as_ref().is_some_and(|record| record.is_running) {
            parts.running.push(index);
            continue;
        }
        let marks = record.as_ref().map_or(0, |record| record.crash_attempts);
        match suspicion(marks, max_crashes) {
            Suspicion::Group => parts.group.push(index),
            Suspicion::Alone => parts.alone.push(index),
            Suspicion::GiveUp => parts.given_up.push((index, marks)),
        }
    }
    parts
}
