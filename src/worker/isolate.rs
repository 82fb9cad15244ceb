//! Redelivered messages, told apart by what they may have done: one of them may have killed the process that had it.

use std::sync::Arc;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::prepare::Candidate;
use crate::decide::{KeyDecision, KeyRecord, OnConflict, Suspicion, decide, suspicion};

/// Who else is at work in the process while a transaction runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    /// Anybody.
    Any,
    /// Anybody; the messages are suspects, so their run is counted before it begins.
    Suspects,
    /// Nobody: a suspect that was at work when a process died.
    Nobody,
}

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
}

/// What of a batch runs next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Nothing of it runs any more; with the number of runs that nobody reported.
    GivenUp(Vec<(usize, u32)>),
    /// These, in this company.
    Run(Company, Vec<usize>),
}

impl Parts {
    /// The innocent first; what may kill the process last, one at a time.
    pub(crate) fn next(self) -> Part {
        if !self.given_up.is_empty() {
            Part::GivenUp(self.given_up)
        } else if !self.free.is_empty() {
            Part::Run(Company::Any, self.free)
        } else if !self.group.is_empty() {
            Part::Run(Company::Suspects, self.group)
        } else {
            Part::Run(Company::Nobody, self.alone.into_iter().take(1).collect())
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
) -> Parts {
    let mut parts = Parts::default();
    for (index, (candidate, record)) in work.iter().zip(records).enumerate() {
        let may_run = record.as_ref().is_none_or(|record| {
            decide(record, candidate.fingerprint.as_ref(), on_conflict) == KeyDecision::Retake
        });
        if !candidate.delivery.message.redelivered || !may_run {
            parts.free.push(index);
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

/// The right to run transactions now: shared by all lanes of the process, or one lane's alone. Held from a message's mark to its
/// outcome, so that nothing that is marked stands by while another one may kill the process.
pub(crate) enum Turn {
    Shared(#[expect(dead_code, reason = "held")] OwnedRwLockReadGuard<()>),
    Alone(#[expect(dead_code, reason = "held")] OwnedRwLockWriteGuard<()>),
}

impl Turn {
    pub(crate) async fn take(turns: &Arc<RwLock<()>>, company: Company) -> Self {
        let turns = Arc::clone(turns);
        match company {
            Company::Nobody => Self::Alone(turns.write_owned().await),
            Company::Any | Company::Suspects => Self::Shared(turns.read_owned().await),
        }
    }
}
