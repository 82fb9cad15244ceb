//! Judges the failures of a consumer's messages by the success of others.

use std::ops::Deref;

use tokio::time::Instant;

use oncely_core::blame::{Blame, Circumstances, blame};
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::identity::Identity;
use oncely_core::outcome::Outcome;
use oncely_process::witnesses::{Began, OtherFailures, TryResult, Witnesses};

/// Progress of one consumer, over all of its lanes.
#[derive(Debug, Default)]
pub(crate) struct ConsumerProgress {
    witnesses: Witnesses<Identity>,
    /// Messages come from a test or a trial: each is judged as if it were alone.
    is_trial: bool,
}

/// A run that has failed.
#[derive(Clone, Copy)]
pub(crate) struct FailedRun<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) class: FaultClass,
    /// It ran in a transaction of its own.
    pub(crate) by_itself: bool,
    /// Begin of the run.
    pub(crate) began: Began,
    /// Another message has succeeded in the same batch.
    pub(crate) beside: bool,
    /// Its message was charged with the same SQLSTATE before.
    pub(crate) again: bool,
}

impl Deref for ConsumerProgress {
    type Target = Witnesses<Identity>;

    fn deref(&self) -> &Self::Target {
        &self.witnesses
    }
}

impl ConsumerProgress {
    /// Creates the progress of a consumer with messages from a test or a trial.
    pub(crate) fn of_a_trial() -> Self {
        Self { is_trial: true, ..Self::default() }
    }

    /// Records committed outcomes. Returns whether the consumer goes on: a message has taken effect, or none waits any more.
    pub(crate) fn note<'a>(
        &self,
        began: Began,
        decided: impl Iterator<Item = (&'a Identity, &'a Outcome)>,
    ) -> bool {
        self.witnesses.note(
            began,
            Instant::now(),
            decided.map(|(identity, outcome)| (identity, try_result(outcome))),
        )
    }

    /// Returns the fault of a failure with an undecided cause: it may affect every message, and the consumer waits for a success. For a
    /// lock that others don't meet, only its own message waits, aside.
    pub(crate) fn unanswered(&self, run: FailedRun<'_>, fault: Fault, now: Instant) -> Fault {
        match fault.class == FaultClass::Contention
            && (run.beside || self.has_witness(run.identity, run.began, now))
        {
            true => fault,
            false => fault.of_nobody(),
        }
    }

    /// Decides whether a failed run is charged to its message, its batch or neither.
    pub(crate) fn blame(&self, run: FailedRun<'_>, now: Instant) -> Blame {
        let FailedRun { identity, class, by_itself, began, beside, again } = run;
        if by_itself && class == FaultClass::Contention {
            self.met_lock(identity, began, now);
        }
        // Other messages don't meet the lock that this one waits for, whenever they ran. In a trial, no environment begins or ends to fail.
        let beside = beside && (self.is_trial || class == FaultClass::Contention);
        let witness = beside || self.has_witness(identity, began, now);
        // While nothing succeeds it may affect all after all.
        let again = again && !self.is_stalled();
        let company = match self.is_trial {
            // A rejection, or a failure that is this message's own, is no sign that others fail.
            _ if witness || again || class.is_of_one_message() => OtherFailures::Unknown,
            true => OtherFailures::Alone,
            false => self.fails(identity, now),
        };
        blame(
            class,
            Circumstances {
                by_itself,
                witness: witness || again,
                alone: company == OtherFailures::Alone,
                persists: again || self.persists(identity, now),
            },
        )
    }
}

fn try_result(outcome: &Outcome) -> TryResult {
    match outcome {
        // A refusal is an answer: the handler works.
        Outcome::Completed { .. } | Outcome::Refused { .. } => TryResult::Succeeded,
        Outcome::Retried { .. } => TryResult::Charged,
        Outcome::Undecided { fault, .. }
            if fault.class != FaultClass::Contention && fault.class != FaultClass::Crashed =>
        {
            TryResult::Failed
        }
        // A message that goes to the end of its queue stays undecided.
        Outcome::Undecided { .. } | Outcome::Postponed { .. } => TryResult::Nothing,
        Outcome::Duplicate(_) | Outcome::DeadLettered { .. } => TryResult::Over,
    }
}
