//! A round of a batch, without I/O: its candidates' outcomes, and their next steps.

use oncely_core::decide::find_leaders;
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::outcome::{DuplicateSource, Outcome};
use oncely_postgres::AuditRecord;

use super::candidate::{Candidate, DecidedDelivery};
use super::shared::ConsumerContext;
use super::transaction::record::build_audit_record;
use super::transaction::replies::wants_reply;

/// Outcomes of the candidates that were decided, by their position among these.
pub(super) struct RoundOutcomes {
    pub(super) outcomes: Vec<(usize, Outcome)>,
    /// Positions of candidates to be put aside: each has to run alone in the process, and waits for others before that.
    pub(super) later: Vec<usize>,
}

impl RoundOutcomes {
    /// Creates the outcomes of candidates, none of which is put aside.
    pub(super) fn from_outcomes(outcomes: impl IntoIterator<Item = (usize, Outcome)>) -> Self {
        Self { outcomes: outcomes.into_iter().collect(), later: Vec::new() }
    }
}

/// Candidates of one round. The first of each identity leads: it is decided, and its copies follow it.
pub(super) struct Round {
    candidates: Vec<Candidate>,
    /// The first with the same identity; `None` for the first itself.
    leader_of: Vec<Option<usize>>,
    outcomes: Vec<Option<Outcome>>,
    /// Whether each has to run alone, and waits for others before that.
    must_run_alone: Vec<bool>,
    /// Duplicates that the audit trail lists, and no transaction has recorded.
    listed_duplicates: Vec<usize>,
}

/// Candidates of a round by their next step.
pub(super) struct DecidedRound {
    pub(super) settled: Vec<DecidedDelivery>,
    /// Candidates that go through another round.
    pub(super) next_round: Vec<Candidate>,
    /// Failures that are not attributed yet.
    pub(super) undecided: Vec<(Candidate, Fault)>,
    /// Candidates that have to run alone, and wait for others before that.
    pub(super) suspects: Vec<Candidate>,
    /// Whether one has completed.
    pub(super) has_completed: bool,
}

impl Round {
    pub(super) fn new(candidates: Vec<Candidate>) -> Self {
        let leader_of = find_leaders(candidates.iter().map(|candidate| &candidate.identity));
        let count = candidates.len();
        Self {
            candidates,
            leader_of,
            outcomes: vec![None; count],
            must_run_alone: vec![false; count],
            listed_duplicates: Vec::new(),
        }
    }

    pub(super) fn candidate(&self, index: usize) -> &Candidate {
        &self.candidates[index]
    }

    pub(super) fn into_candidates(self) -> Vec<Candidate> {
        self.candidates
    }

    /// Returns the positions of leading candidates without an outcome.
    pub(super) fn open_leaders(&self) -> Vec<usize> {
        let is_open = |&index: &usize| self.leader_of[index].is_none() && self.outcomes[index].is_none();
        (0..self.candidates.len()).filter(is_open).collect()
    }

    /// Records that the mirror knows a candidate's key: the candidate is a duplicate. A candidate that wants a reply stays open, since the
    /// content of its reply is in PostgreSQL alone.
    pub(super) fn record_mirror_hit(&mut self, shared: &ConsumerContext, index: usize) {
        if !wants_reply(shared, &self.candidates[index]) {
            self.outcomes[index] = Some(Outcome::Duplicate(DuplicateSource::Mirror));
            if shared.list_duplicates {
                self.listed_duplicates.push(index);
            }
        }
    }

    /// Records the outcomes of the candidates at the positions `open`.
    pub(super) fn record_outcomes(&mut self, open: &[usize], decided: RoundOutcomes) {
        for (position, outcome) in decided.outcomes {
            self.outcomes[open[position]] = Some(outcome);
        }
        for position in decided.later {
            self.must_run_alone[open[position]] = true;
        }
    }

    /// Decides copies like the first of their identity. Copies with another payload, and copies that want a reply, stay undecided.
    pub(super) fn decide_copies(&mut self, shared: &ConsumerContext) {
        for index in 0..self.candidates.len() {
            let Some(leader) = self.leader_of[index] else { continue };
            // A new copy of a message that has to run alone has to do so as well, and waits with it.
            self.must_run_alone[index] = self.must_run_alone[leader];
            if self.candidates[leader].fingerprint != self.candidates[index].fingerprint {
                continue;
            }
            let Some(outcome) = self.outcomes[leader].as_ref().and_then(Outcome::outcome_for_copy) else {
                continue;
            };
            if matches!(outcome, Outcome::Duplicate(_)) {
                if wants_reply(shared, &self.candidates[index]) {
                    continue;
                }
                if shared.list_duplicates {
                    self.listed_duplicates.push(index);
                }
            }
            self.outcomes[index] = Some(outcome);
        }
    }

    /// Returns the records of the listed duplicates.
    pub(super) fn build_audit_records(&self) -> Vec<AuditRecord<'_>> {
        let record = |&index: &usize| {
            Some(build_audit_record(&self.candidates[index], self.outcomes[index].as_ref()?))
        };
        self.listed_duplicates.iter().filter_map(record).collect()
    }

    /// Notes the outcomes in the journal, and separates the candidates by their next step.
    pub(super) fn end(self, shared: &ConsumerContext) -> DecidedRound {
        let mut round = DecidedRound {
            settled: Vec::with_capacity(self.candidates.len()),
            next_round: Vec::new(),
            undecided: Vec::new(),
            suspects: Vec::new(),
            has_completed: self.outcomes.iter().flatten().any(Outcome::has_completed_key),
        };
        for ((mut candidate, outcome), must_run_alone) in
            self.candidates.into_iter().zip(self.outcomes).zip(self.must_run_alone)
        {
            if let Some(outcome) = &outcome {
                shared.journal.record(&candidate.delivery, outcome);
            }
            match outcome {
                Some(Outcome::Undecided { fault, .. }) if fault.class == FaultClass::Crashed => {
                    candidate.delivery.message.redelivered = true;
                    round.next_round.push(candidate);
                }
                Some(Outcome::Undecided { fault, .. }) => round.undecided.push((candidate, fault)),
                Some(outcome) => round.settled.push(candidate.into_decided(outcome)),
                None if must_run_alone => {
                    candidate.delivery.message.redelivered = true;
                    round.suspects.push(candidate);
                }
                None => round.next_round.push(candidate),
            }
        }
        round
    }
}
