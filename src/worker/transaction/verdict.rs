//! What becomes of each message of a batch, by what its claim and its handler said.

use super::call::Results;
use super::claim::Claim;
use super::plan::Plan;
use crate::blame::Blame;
use crate::decide::{FailureDecision, after_failure};
use crate::fault::{Fault, FaultClass};
use crate::outcome::{DuplicateSource, Outcome};
use crate::worker::candidate::Candidate;
use crate::worker::progress::FailedRun;
use crate::worker::shared::Shared;

/// The outcomes, in the order of the claims; `results` are of those that ran, in the same order.
pub(super) fn verdicts(
    shared: &Shared,
    plan: Plan,
    candidates: &[&Candidate],
    claims: Vec<Claim>,
    results: Results,
) -> Vec<Outcome> {
    let witness = plan.has_witness() || results.iter().any(Result::is_ok);
    let mut results = results.into_iter();
    let decided = claims.into_iter().zip(candidates).map(|(claim, candidate)| {
        let (attempt, failed_with) = match claim {
            Claim::Run { attempt, failed_with } => (attempt, failed_with),
            Claim::Duplicate => return Outcome::Duplicate(DuplicateSource::Postgres),
            Claim::Reject(rejection) => return Outcome::rejected(rejection),
            Claim::Early(delay) => return Outcome::Postponed { delay },
            Claim::Recorded(outcome) => return outcome,
            Claim::Suspect => {
                let text = "a process died while it was at work: it runs apart from others";
                let fault = Fault::new(FaultClass::Crashed, None, text);
                return Outcome::Undecided { attempts: 0, fault };
            }
        };
        let fault = match results.next() {
            Some(Ok(response)) => return Outcome::Completed { attempt, response },
            Some(Err(fault)) => fault,
            // Never: a handler's results are counted.
            None => Fault::new(FaultClass::Transient, None, "the handler has no result"),
        };
        let run = FailedRun {
            identity: &candidate.identity,
            class: fault.class,
            by_itself: plan.is_by_itself(),
            witness,
            again: attempt > 1 && failed_with == fault.code,
            is_last: shared.consumer.retry.after(attempt).is_none(),
        };
        match shared.progress.blame(run, tokio::time::Instant::now()) {
            Blame::Message(class) => failed(shared, Fault { class, ..fault }, attempt),
            Blame::Batch => Outcome::Undecided { attempts: attempt.saturating_sub(1), fault },
            Blame::Nobody => {
                let fault = shared.progress.unanswered(run, fault, tokio::time::Instant::now());
                Outcome::Undecided { attempts: attempt.saturating_sub(1), fault }
            }
        }
    });
    decided.collect()
}

/// What becomes of a message that answers for the failure of its `attempt`-th run.
pub(super) fn failed(shared: &Shared, fault: Fault, attempt: u32) -> Outcome {
    match after_failure(&fault, attempt, &shared.consumer.retry) {
        FailureDecision::Retry(delay) => {
            Outcome::Retried { attempt, delay, detail: fault.to_string(), code: fault.code }
        }
        FailureDecision::Refuse(reason) => Outcome::Refused { attempt, reason },
        FailureDecision::GiveUp(rejection) => {
            Outcome::DeadLettered { attempt, rejection, code: fault.code, letter: None }
        }
    }
}
