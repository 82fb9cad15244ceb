//! Decides each message of a batch, by its claim and its handler's result.

use super::batch_run::BatchPlan;
use super::call::Results;
use super::claim::CandidateClaim;
use crate::worker::candidate::Candidate;
use crate::worker::progress::FailedRun;
use crate::worker::shared::ConsumerContext;
use oncely_core::blame::Blame;
use oncely_core::decide::{FailureDecision, decide_after_failure};
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::outcome::{DuplicateSource, Outcome};
use oncely_process::witnesses::Began;

/// Decides the outcomes, in the order of the claims, and attributes failures; `results` are of those that ran, in the same order.
pub(super) fn decide_outcomes(
    shared: &ConsumerContext,
    plan: BatchPlan,
    began: Began,
    candidates: &[&Candidate],
    claims: Vec<CandidateClaim>,
    results: Results,
) -> Vec<Outcome> {
    let has_success_beside = plan.has_witness() || results.iter().any(Result::is_ok);
    let mut results = results.into_iter();
    let outcomes = claims.into_iter().zip(candidates).map(|(claim, candidate)| {
        let (attempt, failed_with) = match claim {
            CandidateClaim::Run { attempt, failed_with } => (attempt, failed_with),
            CandidateClaim::Duplicate => return Outcome::Duplicate(DuplicateSource::Postgres),
            CandidateClaim::Reject(rejection) => return Outcome::from_rejection(rejection),
            CandidateClaim::Early(delay) => return Outcome::Postponed { delay },
            CandidateClaim::Recorded(outcome) => return outcome,
            CandidateClaim::Suspect => {
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
            began,
            has_success_beside,
            is_repeated: attempt > 1 && failed_with == fault.code,
        };
        match shared.progress.blame(run, tokio::time::Instant::now()) {
            Blame::Message(class) => decide_failure(shared, Fault { class, ..fault }, attempt),
            Blame::Batch => Outcome::Undecided { attempts: attempt.saturating_sub(1), fault },
            Blame::Unknown => {
                let fault = shared.progress.undecided_fault(run, fault, tokio::time::Instant::now());
                Outcome::Undecided { attempts: attempt.saturating_sub(1), fault }
            }
        }
    });
    outcomes.collect()
}

/// Decides the outcome of a message that is charged with the failure of its `attempt`-th run.
pub(super) fn decide_failure(shared: &ConsumerContext, fault: Fault, attempt: u32) -> Outcome {
    match decide_after_failure(&fault, attempt, &shared.consumer.retry) {
        FailureDecision::Retry(delay) => {
            Outcome::Retried { attempt, delay, detail: fault.to_string(), code: fault.code }
        }
        FailureDecision::Refuse(reason) => Outcome::Refused { attempt, reason },
        FailureDecision::GiveUp(rejection) => {
            Outcome::DeadLettered { attempt, rejection, code: fault.code, letter: None }
        }
    }
}
