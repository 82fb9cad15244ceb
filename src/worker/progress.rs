//! Whether a consumer's messages succeed, and who answers for one that fails.

use std::ops::Deref;

use tokio::time::Instant;

use crate::blame::{Blame, Circumstances, blame};
use crate::fault::{Fault, FaultClass};
use crate::identity::Identity;
use crate::outcome::Outcome;
use crate::witnesses::{Company, Said, Witnesses};

/// Of one consumer, over all of its lanes.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    witnesses: Witnesses<Identity>,
    /// Messages are handed over by a test or a trial: each is judged as if it were alone.
    is_trial: bool,
}

/// A run that has failed.
#[derive(Clone, Copy)]
pub(crate) struct FailedRun<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) class: FaultClass,
    /// It ran in a transaction of its own.
    pub(crate) by_itself: bool,
    /// Another message has succeeded beside it.
    pub(crate) witness: bool,
    /// Its message was charged with the same SQLSTATE before.
    pub(crate) again: bool,
    /// Charged with it the message is given up.
    pub(crate) is_last: bool,
}

impl Deref for Progress {
    type Target = Witnesses<Identity>;

    fn deref(&self) -> &Self::Target {
        &self.witnesses
    }
}

impl Progress {
    /// Of a consumer whose messages are handed over by a test or a trial.
    pub(crate) fn of_a_trial() -> Self {
        Self { is_trial: true, ..Self::default() }
    }

    /// These outcomes are committed. Does the consumer go on: has one of the messages taken effect, or does none wait any more?
    pub(crate) fn note<'a>(&self, decided: impl Iterator<Item = (&'a Identity, &'a Outcome)>) -> bool {
        self.witnesses.note(decided.map(|(identity, outcome)| (identity, said(outcome))))
    }

    /// Says what a failure is taken for that nothing answers for yet: it may strike every message, and the consumer waits for a success. A lock
    /// that others don't meet is waited for aside, by its message alone.
    pub(crate) fn unanswered(&self, run: FailedRun<'_>, fault: Fault, now: Instant) -> Fault {
        match fault.class == FaultClass::Contention && (run.witness || self.has_witness(run.identity, now)) {
            true => fault,
            false => fault.of_nobody(),
        }
    }

    /// Decides who answers for a run that has failed.
    pub(crate) fn blame(&self, run: FailedRun<'_>, now: Instant) -> Blame {
        let FailedRun { identity, class, by_itself, witness, again, is_last } = run;
        let witness = witness || self.has_witness(identity, now);
        let company = match self.is_trial {
            // A rejection is no sign that others fail.
            _ if witness || class.is_of_one_message() => Company::Unknown,
            true => Company::Alone,
            false => self.fails(identity, now),
        };
        // While nothing succeeds it may be everybody's after all.
        let again = again && !self.is_stalled();
        blame(
            class,
            Circumstances {
                by_itself,
                witness: witness || again,
                alone: company == Company::Alone,
                is_last,
                persists: again || self.persists(identity, now),
            },
        )
    }
}

fn said(outcome: &Outcome) -> Said {
    match outcome {
        // A no is an answer: the handler works.
        Outcome::Completed { .. } | Outcome::Refused { .. } => Said::Succeeded,
        Outcome::Retried { .. } => Said::Charged,
        // One that goes to the end of its queue is as undecided as before.
        Outcome::Undecided { .. } | Outcome::Postponed { .. } => Said::Nothing,
        Outcome::Duplicate(_) | Outcome::DeadLettered { .. } => Said::Over,
    }
}
