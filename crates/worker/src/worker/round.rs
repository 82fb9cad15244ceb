//! A round of a batch, without I/O: its candidates' outcomes, and their next steps.

use oncely_core::decide::leaders;
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::outcome::{DuplicateSource, Outcome};
use oncely_postgres::AuditRecord;

use super::candidate::{Candidate, DecidedDelivery};
use super::shared::ConsumerContext;
use super::transaction::record::audit_record;
use super::transaction::replies::wants_reply;

/// Outcomes of the candidates that were decided, by their position among these.
pub(super) struct RoundOutcomes {
    pub(super) outcomes: Vec<(usize, Outcome)>,
    /// To be put aside: each has to run alone in the process, and lets others pass.
    pub(super) later: Vec<usize>,
}

impl RoundOutcomes {
    pub(super) fn all(outcomes: impl IntoIterator<Item = (usize, Outcome)>) -> Self {
        Self { outcomes: outcomes.into_iter().collect(), later: Vec::new() }
    }
}

/// Candidates of one round. The first of each identity leads: it is decided, and its copies follow it.
pub(super) struct Round {
    candidates: Vec<Candidate>,
    /// The first with the same identity; `None` for the first itself.
    leader_of: Vec<Option<usize>>,
    outcomes: Vec<Option<Outcome>>,
    /// Those that have to run alone, and let others pass before.
    let_pass: Vec<bool>,
    /// Duplicates that the audit trail lists, and no transaction has recorded.
    listed: Vec<usize>,
}

/// Candidates of a round by their next step.
pub(super) struct DecidedRound {
    pub(super) settled: Vec<DecidedDelivery>,
    /// They go through another round.
    pub(super) again: Vec<Candidate>,
    /// Failures that are not attributed yet.
    pub(super) undecided: Vec<(Candidate, Fault)>,
    /// They have to run alone, and let others pass before.
    pub(super) suspects: Vec<Candidate>,
    /// Whether one has completed.
    pub(super) completed: bool,
}

impl Round {
    pub(super) fn new(candidates: Vec<Candidate>) -> Self {
        let leader_of = leaders(candidates.iter().map(|candidate| &candidate.identity));
        let count = candidates.len();
        Self {
            candidates,
            leader_of,
            outcomes: vec![None; count],
            let_pass: vec![false; count],
            listed: Vec::new(),
        }
    }

    pub(super) fn candidate(&self, index: usize) -> &Candidate {
        &self.candidates[index]
    }

    pub(super) fn into_candidates(self) -> Vec<Candidate> {
        self.candidates
    }

    /// Returns the leading candidates without an outcome.
    pub(super) fn open(&self) -> Vec<usize> {
        let is_open = |&index: &usize| self.leader_of[index].is_none() && self.outcomes[index].is_none();
        (0..self.candidates.len()).filter(is_open).collect()
    }

    /// Records that the mirror knows a candidate's key. One that wants a reply stays open: its content is in PostgreSQL alone.
    pub(super) fn known_to_mirror(&mut self, shared: &ConsumerContext, index: usize) {
        if !wants_reply(shared, &self.candidates[index]) {
            self.outcomes[index] = Some(Outcome::Duplicate(DuplicateSource::Mirror));
            if shared.list_duplicates {
                self.listed.push(index);
            }
        }
    }

    /// Records the outcomes of these candidates.
    pub(super) fn decide(&mut self, open: &[usize], decided: RoundOutcomes) {
        for (position, outcome) in decided.outcomes {
            self.outcomes[open[position]] = Some(outcome);
        }
        for position in decided.later {
            self.let_pass[open[position]] = true;
        }
    }

    /// Lets copies follow the first of their identity. Those with another payload, and those that want a reply, stay undecided.
    pub(super) fn decide_copies(&mut self, shared: &ConsumerContext) {
        for index in 0..self.candidates.len() {
            let Some(leader) = self.leader_of[index] else { continue };
            // A new copy of a message that has to run alone has to do so as well, and waits with it.
            self.let_pass[index] = self.let_pass[leader];
            if self.candidates[leader].fingerprint != self.candidates[index].fingerprint {
                continue;
            }
            let Some(outcome) = self.outcomes[leader].as_ref().and_then(Outcome::of_copy) else { continue };
            if matches!(outcome, Outcome::Duplicate(_)) {
                if wants_reply(shared, &self.candidates[index]) {
                    continue;
                }
                if shared.list_duplicates {
                    self.listed.push(index);
                }
            }
            self.outcomes[index] = Some(outcome);
        }
    }

    /// Returns the records of the listed duplicates.
    pub(super) fn audit_records(&self) -> Vec<AuditRecord<'_>> {
        let record =
            |&index: &usize| Some(audit_record(&self.candidates[index], self.outcomes[index].as_ref()?));
        self.listed.iter().filter_map(record).collect()
    }

    /// Notes the outcomes in the journal, and separates the candidates by their next step.
    pub(super) fn end(self, shared: &ConsumerContext) -> DecidedRound {
        let mut round = DecidedRound {
            settled: Vec::with_capacity(self.candidates.len()),
            again: Vec::new(),
            undecided: Vec::new(),
            suspects: Vec::new(),
            completed: self.outcomes.iter().flatten().any(Outcome::completes),
        };
        for ((mut candidate, outcome), lets_pass) in
            self.candidates.into_iter().zip(self.outcomes).zip(self.let_pass)
        {
            if let Some(outcome) = &outcome {
                shared.journal.note(&candidate.delivery, outcome);
            }
            match outcome {
                Some(Outcome::Undecided { fault, .. }) if fault.class == FaultClass::Crashed => {
                    candidate.delivery.message.redelivered = true;
                    round.again.push(candidate);
                }
                Some(Outcome::Undecided { fault, .. }) => round.undecided.push((candidate, fault)),
                Some(outcome) => round.settled.push(candidate.decided(outcome)),
                None if lets_pass => {
                    candidate.delivery.message.redelivered = true;
                    round.suspects.push(candidate);
                }
                None => round.again.push(candidate),
            }
        }
        round
    }
}
