//! Attributes the failures of a consumer's messages by the success of others.

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
    /// Messages come from a test or a trial: the failure of each is attributed as if it were alone.
    is_trial: bool,
}

/// A run that has failed.
#[derive(Clone, Copy)]
pub(crate) struct FailedRun<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) class: FaultClass,
    /// It ran in a transaction of its own.
    pub(crate) by_itself: bool,
    /// Start of the run.
    pub(crate) began: Began,
    /// Another message has succeeded in the same batch.
    pub(crate) has_success_beside: bool,
    /// Its message was charged with the same SQLSTATE before.
    pub(crate) is_repeated: bool,
}

impl Deref for ConsumerProgress {
    type Target = Witnesses<Identity>;

    fn deref(&self) -> &Self::Target {
        &self.witnesses
    }
}

impl ConsumerProgress {
    /// Creates the progress of a consumer with messages from a test or a trial.
    pub(crate) fn new_for_trial() -> Self {
        Self { is_trial: true, ..Self::default() }
    }

    /// Records committed outcomes. Returns whether the consumer goes on: a message has taken effect, or none waits any more.
    pub(crate) fn record_outcomes<'a>(
        &self,
        began: Began,
        outcomes: impl Iterator<Item = (&'a Identity, &'a Outcome)>,
    ) -> bool {
        self.witnesses.record_results(
            began,
            Instant::now(),
            outcomes.map(|(identity, outcome)| (identity, classify_try(outcome))),
        )
    }

    /// Returns the fault of a failure with an undecided cause: by default one that may affect every message, so that the consumer waits for
    /// a success. For a lock that others don't meet, only its own message waits, aside.
    pub(crate) fn undecided_fault(&self, run: FailedRun<'_>, fault: Fault, now: Instant) -> Fault {
        match fault.class == FaultClass::Contention
            && (run.has_success_beside || self.has_witness(run.identity, run.began, now))
        {
            true => fault,
            false => fault.into_environment_fault(),
        }
    }

    /// Decides whether a failed run is charged to its message, its batch or neither. Records a lock that a message met alone, and a failure
    /// that may be the environment's.
    pub(crate) fn blame(&self, run: FailedRun<'_>, now: Instant) -> Blame {
        let FailedRun { identity, class, by_itself, began, has_success_beside, is_repeated } = run;
        if by_itself && class == FaultClass::Contention {
            self.record_lock(identity, began, now);
        }
        // Other messages don't meet the lock that the failed one waits for, whenever they ran. In a trial, no environment begins or ends to
        // fail.
        let has_success_beside = has_success_beside && (self.is_trial || class == FaultClass::Contention);
        let witness = has_success_beside || self.has_witness(identity, began, now);
        // While nothing succeeds it may affect all after all.
        let is_repeated = is_repeated && !self.is_stalled();
        let others = match self.is_trial {
            // A rejection, or a failure that is this message's own, is no sign that others fail.
            _ if witness || is_repeated || class.is_of_one_message() => OtherFailures::Unknown,
            true => OtherFailures::Alone,
            false => self.record_suspected_failure(identity, now),
        };
        blame(
            class,
            Circumstances {
                is_by_itself: by_itself,
                has_witness: witness || is_repeated,
                is_alone: others == OtherFailures::Alone,
                is_persistent: is_repeated || self.has_lasting_contention(identity, now),
            },
        )
    }
}

/// Classifies an outcome as the result of a try, for the witnesses.
fn classify_try(outcome: &Outcome) -> TryResult {
    match outcome {
        // A refusal shows that the handler works.
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
