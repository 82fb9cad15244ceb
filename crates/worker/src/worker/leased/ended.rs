//! Records a run's end, and decides its message's outcome.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::runner::{MessageDecision, Runner};
use crate::worker::candidate::Candidate;
use crate::worker::progress::FailedRun;
use oncely_core::blame::Blame;
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::outcome::{DuplicateSource, Outcome};
use oncely_core::reason::{Reason, Rejection};
use oncely_handler::HandlerError;
use oncely_handler::lease::{Finish, Lease, RunEndResult, RunFailure};
use oncely_postgres::{LeaseFailOutcome, PgFault};
use oncely_process::witnesses::{Began, OtherFailures, WITNESS_WAIT};

impl Runner {
    /// Records that the run is done, or that its handler refused the message.
    pub(super) async fn finish(
        &self,
        lease: &Lease,
        candidate: &Arc<Candidate>,
        began: Began,
        finish: &Finish,
        refusal: Option<String>,
    ) -> MessageDecision {
        match lease.complete(finish, refusal.is_some(), candidate.fingerprint).await {
            Ok(RunEndResult::Done(())) => {
                let outcome = match refusal {
                    Some(reason) => Outcome::Refused { attempt: lease.attempt(), reason },
                    None => Outcome::Completed {
                        attempt: lease.attempt(),
                        response: finish.response.as_ref().map(ToString::to_string),
                    },
                };
                outcome.into()
            }
            Ok(RunEndResult::Lost) => {
                self.record_loss(lease, candidate, "its run came to an end, and another one has the key")
                    .await
            }
            Ok(RunEndResult::Abandoned) => MessageDecision::Redelivery,
            Err(fault) => self.record_failure(lease, candidate, began, fault, None).await,
        }
    }

    /// Decides a run that ended with a handler's error: a refusal, a failure, or an outage that is no message's fault. Records its end.
    pub(super) async fn fail(
        &self,
        lease: &Lease,
        candidate: &Arc<Candidate>,
        began: Began,
        error: HandlerError,
    ) -> MessageDecision {
        let unknown_reason =
            matches!(error, HandlerError::OutcomeUnknown(_)).then_some(Reason::OutcomeUnknown);
        match error.into_fault() {
            PgFault::Fault(fault) if fault.class == FaultClass::Refused => {
                let finish = Finish::response(serde_json::json!({ "refused": fault.message }));
                match finish {
                    Ok(finish) => {
                        // A lost run records nothing, not even a refusal.
                        Box::pin(self.finish(lease, candidate, began, &finish, Some(fault.message))).await
                    }
                    Err(_) => MessageDecision::Redelivery,
                }
            }
            PgFault::Fault(fault) if fault.class == FaultClass::Environment && lease.run().lacks_key() => {
                self.retry_without_key(lease, candidate, &fault).await
            }
            PgFault::Fault(fault) => {
                self.record_failure(lease, candidate, began, fault, unknown_reason).await
            }
            PgFault::Outage(outage) => {
                let fault = Fault::new(FaultClass::Environment, None, outage.to_string());
                // While this process was cut off from PostgreSQL that is no message's fault, whichever succeed meanwhile. A connection
                // error that only this run met may be: the server's process may crash at its statement.
                if self.store.last_outage.is_within(self.shared.consumer.lease.time) {
                    return self.put_aside_undecided(lease, candidate, &fault).await;
                }
                self.record_failure(lease, candidate, began, fault, None).await
            }
        }
    }

    /// Attributes a failure, and records it: a retry or the end of the message, or nothing while its cause is undecided.
    async fn record_failure(
        &self,
        lease: &Lease,
        candidate: &Arc<Candidate>,
        began: Began,
        fault: Fault,
        unknown_reason: Option<Reason>,
    ) -> MessageDecision {
        let shared = &*self.shared;
        let retry = &shared.consumer.retry;
        let attempt = lease.attempt();
        shared.counters.metrics.count_failure(fault.class);
        let (progress, identity) = (&shared.progress, &candidate.identity);
        let run = FailedRun {
            identity,
            class: fault.class,
            // Each run has its own transactions, if any.
            by_itself: true,
            began,
            has_success_beside: false,
            is_repeated: progress.was_charged_with(identity, fault.code.as_deref()),
        };
        let mut verdict = progress.blame(run, Instant::now());
        if verdict == Blame::Unknown
            && progress.record_suspected_failure(identity, Instant::now()) != OtherFailures::Others
        {
            // It may be the only one that fails. It is not run again to find out: a run may call another system.
            progress.postpone(identity, Instant::now(), true);
            tokio::select! {
                () = shared.stop.cancelled() => {}
                () = tokio::time::sleep(WITNESS_WAIT) => {}
            }
            verdict = progress.blame(run, Instant::now());
        }
        let class = match verdict {
            Blame::Message(class) => class,
            Blame::Batch | Blame::Unknown if unknown_reason.is_none() => {
                return self.put_aside_undecided(lease, candidate, &fault.into_environment_fault()).await;
            }
            Blame::Batch | Blame::Unknown => fault.class,
        };
        let delay = retry.delay_after(attempt).unwrap_or_default();
        let failure = RunFailure {
            error: fault.to_string(),
            reason: unknown_reason.or(final_reason(class)),
            error_code: fault.code.clone(),
            max_attempts: retry.max_attempts,
            delay,
        };
        let result = lease.fail(failure).await;
        match result {
            RunEndResult::Done(LeaseFailOutcome::Retry { .. }) => {
                progress.record_charge(identity, fault.code.as_deref());
                Outcome::Retried { attempt, delay, code: fault.code, detail: fault.message }.into()
            }
            RunEndResult::Done(LeaseFailOutcome::GivenUp { reason, .. }) => {
                let rejection = Rejection::new(reason, fault.to_string());
                let outcome = Outcome::DeadLettered { attempt, rejection, code: fault.code, letter: None };
                self.give_up(candidate, outcome, true).await
            }
            RunEndResult::Done(LeaseFailOutcome::Completed) => {
                Outcome::Duplicate(DuplicateSource::Postgres).into()
            }
            RunEndResult::Done(LeaseFailOutcome::Lost) | RunEndResult::Lost => {
                self.postpone_fenced(candidate)
            }
            RunEndResult::Abandoned => MessageDecision::Redelivery,
        }
    }

    /// Decides the message of a run that lost its key. The run is recorded as released or failed only if it holds the key after all, or has
    /// completed it.
    pub(super) async fn record_loss(
        &self,
        lease: &Lease,
        candidate: &Arc<Candidate>,
        why: &str,
    ) -> MessageDecision {
        // It was only believed to be lost, or its time was over and no other run took it: the message is not at fault.
        if lease.release().await == Some(true) {
            return self.postpone(candidate, Duration::ZERO);
        }
        let max_attempts = self.shared.consumer.retry.max_attempts;
        let failure = RunFailure {
            error: why.to_owned(),
            reason: None,
            error_code: None,
            max_attempts,
            delay: Duration::ZERO,
        };
        match lease.fail(failure).await {
            RunEndResult::Done(LeaseFailOutcome::Completed) => {
                Outcome::Duplicate(DuplicateSource::Postgres).into()
            }
            RunEndResult::Done(LeaseFailOutcome::Retry { .. } | LeaseFailOutcome::GivenUp { .. }) => {
                self.postpone(candidate, Duration::ZERO)
            }
            RunEndResult::Done(LeaseFailOutcome::Lost) | RunEndResult::Lost => {
                self.postpone_fenced(candidate)
            }
            RunEndResult::Abandoned => MessageDecision::Redelivery,
        }
    }

    /// Releases the key and puts the message aside while its failure's cause is undecided: nothing is counted. A success of another message
    /// meanwhile is evidence against it.
    async fn put_aside_undecided(
        &self,
        lease: &Lease,
        candidate: &Candidate,
        fault: &Fault,
    ) -> MessageDecision {
        let shared = &*self.shared;
        lease.release().await;
        shared.progress.record_stall();
        let decision = self.decide_aside(candidate, fault.class);
        let (consumer, identity) = (&shared.consumer.name, &candidate.identity);
        let (tenant, key) = (&identity.tenant, &identity.key);
        match shared.health.record_stall(fault, Some(identity)) {
            true => tracing::error!(%consumer, %tenant, %key, sqlstate = fault.code, error = %fault,
                "consumer stalled: no message succeeds; failed messages wait, no attempt is spent"),
            false => tracing::warn!(%consumer, %tenant, %key, sqlstate = fault.code, error = %fault,
                "message failed, and no other succeeded meanwhile; it waits, no attempt is spent"),
        }
        decision
    }

    /// Releases the key of a message for which an encryption key is missing, and decides that it is tried again. A process that has the key
    /// can read the stored data, and so can this process once it has the key: successes of other messages are no evidence against its
    /// message.
    async fn retry_without_key(
        &self,
        lease: &Lease,
        candidate: &Candidate,
        fault: &Fault,
    ) -> MessageDecision {
        let (shared, identity) = (&*self.shared, &candidate.identity);
        lease.release().await;
        // First a pause here, whichever its rung is; the next time it goes back to its queue.
        let decision = self.decide_aside(candidate, FaultClass::Contention);
        tracing::error!(consumer = %shared.consumer.name, tenant = %identity.tenant, key = %identity.key, error = %fault,
            "encryption key missing in this process; the message is retried, no attempt is spent");
        if shared.progress.tries(identity) % 2 == 1 {
            return decision;
        }
        let delay = shared.consumer.retry.rung_for(Duration::ZERO).unwrap_or_default();
        shared.progress.record_departure(identity, Instant::now() + delay);
        Outcome::Postponed { delay }.into()
    }

    /// Counts a run that lost its key to another, and postpones its message.
    fn postpone_fenced(&self, candidate: &Candidate) -> MessageDecision {
        self.shared.counters.metrics.fenced.increment(1);
        self.postpone(candidate, Duration::ZERO)
    }

    /// Stores the letter of a message that is given up; `is_recorded`: the trail has its row already.
    pub(super) async fn give_up(
        &self,
        candidate: &Arc<Candidate>,
        outcome: Outcome,
        is_recorded: bool,
    ) -> MessageDecision {
        if is_recorded {
            let outcome_with_letter = self.keep_letter(candidate, outcome).await;
            return outcome_with_letter.map_or(MessageDecision::Redelivery, MessageDecision::Outcome);
        }
        let delivery = self.record_rejected(Candidate::clone(candidate).into_decided(outcome)).await;
        delivery.map_or(MessageDecision::Redelivery, |one| one.outcome.into())
    }
}

/// Returns the reason for which a key is given up at once after such a fault; `None` if its message is tried again.
fn final_reason(class: FaultClass) -> Option<Reason> {
    match class {
        FaultClass::Rejected => Some(Reason::HandlerRejected),
        FaultClass::Poison => Some(Reason::Poison),
        FaultClass::NotJson => Some(Reason::InvalidJson),
        _ => None,
    }
}
