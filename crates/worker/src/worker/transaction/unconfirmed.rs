//! Failures that were recorded by a transaction with an unconfirmed COMMIT.

use std::collections::HashMap;

use crate::worker::candidate::Candidate;
use oncely_core::decide::KeyRecord;
use oncely_core::identity::Identity;
use oncely_core::outcome::Outcome;

/// Failures that a lane has tried to record for the messages of its batch. If the reply to that COMMIT was lost and it happened, the row counts
/// this very failure: running the message again would spend another attempt, and not wait for its delay.
#[derive(Debug, Default)]
pub(crate) struct UnconfirmedOutcomes {
    tried: HashMap<Identity, Outcome>,
    found: Vec<Identity>,
}

impl UnconfirmedOutcomes {
    /// Forgets the failures: the COMMIT was confirmed.
    pub(crate) fn clear(&mut self) {
        self.tried.clear();
    }

    /// Remembers the failures, before COMMIT.
    pub(crate) fn remember(&mut self, candidates: &[&Candidate], outcomes: &[Outcome]) {
        let retried = candidates.iter().zip(outcomes).filter(|(_, o)| matches!(o, Outcome::Retried { .. }));
        self.tried.extend(retried.map(|(one, outcome)| (one.identity.clone(), outcome.clone())));
    }

    /// Returns the failure that this record counts already, if it is the one that was tried.
    pub(crate) fn recorded(&mut self, identity: &Identity, record: &KeyRecord) -> Option<Outcome> {
        let outcome = self.tried.get(identity).filter(
            |outcome| matches!(outcome, Outcome::Retried { attempt, .. } if *attempt == record.attempts),
        )?;
        self.found.push(identity.clone());
        Some(outcome.clone())
    }

    /// Takes the messages with failures that were found recorded: nothing was written for them this time.
    pub(crate) fn take_found(&mut self) -> Vec<Identity> {
        std::mem::take(&mut self.found)
    }
}
