//! Failures that were recorded by a transaction whose COMMIT nobody confirmed.

use std::collections::HashMap;

use crate::decide::KeyRecord;
use crate::identity::Identity;
use crate::outcome::Outcome;
use crate::worker::candidate::Candidate;

/// What a lane has tried to record for the messages at hand. Where the reply to that COMMIT was lost and it happened, the row
/// counts this very failure: running the message again would spend another attempt, and not wait for its delay.
#[derive(Debug, Default)]
pub(crate) struct Unconfirmed {
    tried: HashMap<Identity, Outcome>,
    found: Vec<Identity>,
}

impl Unconfirmed {
    /// The COMMIT was confirmed.
    pub(crate) fn clear(&mut self) {
        self.tried.clear();
    }

    /// Before COMMIT.
    pub(crate) fn remember(&mut self, candidates: &[&Candidate], outcomes: &[Outcome]) {
        let retried = candidates.iter().zip(outcomes).filter(|(_, o)| matches!(o, Outcome::Retried { .. }));
        self.tried.extend(retried.map(|(one, outcome)| (one.identity.clone(), outcome.clone())));
    }

    /// The failure that this record counts already, if it is the one that was tried.
    pub(crate) fn recorded(&mut self, identity: &Identity, record: &KeyRecord) -> Option<Outcome> {
        let outcome = self.tried.get(identity).filter(
            |outcome| matches!(outcome, Outcome::Retried { attempt, .. } if *attempt == record.attempts),
        )?;
        self.found.push(identity.clone());
        Some(outcome.clone())
    }

    /// The messages whose failure was found recorded: nothing was written for them this time.
    pub(crate) fn take_found(&mut self) -> Vec<Identity> {
        std::mem::take(&mut self.found)
    }
}
