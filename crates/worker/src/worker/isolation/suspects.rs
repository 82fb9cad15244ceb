//! Classifies redelivered messages: one of them may have killed the process that had it.

use chrono::{DateTime, Utc};

use super::permit::Isolation;
use crate::worker::candidate::Candidate;
use oncely_core::decide::{
    KeyDecision, KeyRecord, OnConflict, Suspicion, decide_on_key, decide_on_suspect, remaining_wait,
};

/// Messages of a batch by how they may run, as positions in the batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SuspectGroups {
    /// Not redelivered, or not to be run any more.
    pub(crate) free: Vec<usize>,
    /// Together, as suspects.
    pub(crate) group: Vec<usize>,
    /// One after another, each alone in the process.
    pub(crate) alone: Vec<usize>,
    /// Given up, with their number of unreported runs.
    pub(crate) given_up: Vec<(usize, u32)>,
    /// Not now: another session runs a copy.
    pub(crate) running: Vec<usize>,
}

/// Messages of a batch that come next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BatchPart {
    /// To be given up, with their number of unreported runs.
    GivenUp(Vec<(usize, u32)>),
    /// Another session runs a copy.
    Running(Vec<usize>),
    /// To be run with this isolation.
    Run(Isolation, Vec<usize>),
    /// To be run one by one, each alone in the process.
    Alone(Vec<usize>),
}

impl SuspectGroups {
    /// Returns the messages that come next: innocent messages first, and last those that may kill the process.
    pub(crate) fn into_next(self) -> BatchPart {
        if !self.given_up.is_empty() {
            BatchPart::GivenUp(self.given_up)
        } else if !self.running.is_empty() {
            BatchPart::Running(self.running)
        } else if !self.free.is_empty() {
            BatchPart::Run(Isolation::None, self.free)
        } else if !self.group.is_empty() {
            BatchPart::Run(Isolation::Marked, self.group)
        } else {
            BatchPart::Alone(self.alone)
        }
    }
}

/// Returns whether any message was redelivered.
pub(crate) fn has_suspects(candidates: &[&Candidate]) -> bool {
    candidates.iter().any(|candidate| candidate.delivery.message.redelivered)
}

/// Classifies the messages by the records of their keys in PostgreSQL.
pub(crate) fn group_suspects(
    candidates: &[&Candidate],
    records: &[Option<KeyRecord>],
    on_conflict: OnConflict,
    max_crashes: u32,
    now: DateTime<Utc>,
) -> SuspectGroups {
    let mut groups = SuspectGroups::default();
    for (index, (candidate, record)) in candidates.iter().zip(records).enumerate() {
        let may_run = record.as_ref().is_none_or(|record| {
            decide_on_key(record, candidate.fingerprint.as_ref(), on_conflict) == KeyDecision::Retake
                && remaining_wait(record, now).is_none()
        });
        if !candidate.delivery.message.redelivered || !may_run {
            groups.free.push(index);
            continue;
        }
        // A run that is alive is no crash, and two runs of one key would only wait for each other.
        if record.as_ref().is_some_and(|record| record.is_running) {
            groups.running.push(index);
            continue;
        }
        let marks = record.as_ref().map_or(0, |record| record.crash_attempts);
        match decide_on_suspect(marks, max_crashes) {
            Suspicion::Group => groups.group.push(index),
            Suspicion::Alone => groups.alone.push(index),
            Suspicion::GiveUp => groups.given_up.push((index, marks)),
        }
    }
    groups
}
