//! Failures that were recorded by a transaction with an unconfirmed COMMIT.

use std::collections::HashMap;

use crate::worker::candidate::Candidate;
use oncely_core::decide::KeyRecord;
use oncely_core::identity::Identity;
use oncely_core::outcome::Outcome;

/// Failures that a lane has tried to record for the messages of its batch. If the reply to that COMMIT was lost and it happened, the row
/// counts this very failure: running the message again would spend another attempt, and not wait for its delay.
#[derive(Debug, Default)]
pub(crate) struct UnconfirmedOutcomes {
    outcomes: HashMap<Identity, Outcome>,
    recorded: Vec<Identity>,
}

impl UnconfirmedOutcomes {
    /// Forgets the failures: the COMMIT was confirmed.
    pub(crate) fn clear(&mut self) {
        self.outcomes.clear();
    }

    /// Remembers the failures, before COMMIT.
    pub(crate) fn remember(&mut self, candidates: &[&Candidate], outcomes: &[Outcome]) {
        let retried = candidates.iter().zip(outcomes).filter(|(_, o)| matches!(o, Outcome::Retried { .. }));
        self.outcomes.extend(retried.map(|(one, outcome)| (one.identity.clone(), outcome.clone())));
    }

    /// Finds the failure that was tried for this message, and remembers the message as found; `None` if the record does not count that
    /// failure.
    pub(crate) fn find_recorded(&mut self, identity: &Identity, record: &KeyRecord) -> Option<Outcome> {
        let outcome = self.outcomes.get(identity).filter(
            |outcome| matches!(outcome, Outcome::Retried { attempt, .. } if *attempt == record.attempts),
        )?;
        self.recorded.push(identity.clone());
        Some(outcome.clone())
    }

    /// Takes the messages with failures that were found recorded: nothing was written for them this time.
    pub(crate) fn take_recorded(&mut self) -> Vec<Identity> {
        std::mem::take(&mut self.recorded)
    }
}
