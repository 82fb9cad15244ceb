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
use oncely_process::witnesses::{Began, HEARING, OtherFailures};

impl Runner {
    /// Records that the run is done, or that its handler refused the message.
    pub(super) async fn finish(
        &self,
        lease: &Lease,
        candidate: &Arc<Candidate>,
        began: Began,
        finish: &Finish,
        refused: Option<String>,
    ) -> MessageDecision {
        match lease.complete(finish, refused.is_some(), candidate.fingerprint).await {
            Ok(RunEndResult::Done(())) => {
                let outcome = match refused {
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
            Err(fault) => self.fail_with(lease, candidate, began, fault, None).await,
        }
    }

    pub(super) async fn fail(
        &self,
        lease: &Lease,
        candidate: &Arc<Candidate>,
        began: Began,
        error: HandlerError,
    ) -> MessageDecision {
        let unknown = matches!(error, HandlerError::OutcomeUnknown(_)).then_some(Reason::OutcomeUnknown);
        match error.into_fault() {
            PgFault::Fault(fault) if fault.class == FaultClass::Refused => {
                let answer = Finish::response(serde_json::json!({ "refused": fault.message }));
                match answer {
                    Ok(answer) => {
                        // A lost run records nothing, not even a refusal.
                        Box::pin(self.finish(lease, candidate, began, &answer, Some(fault.message))).await
                    }
                    Err(_) => MessageDecision::Redelivery,
                }
            }
            PgFault::Fault(fault) if fault.class == FaultClass::Environment && lease.run().lacks_key() => {
                self.retry_without_key(lease, candidate, &fault).await
            }
            PgFault::Fault(fault) => self.fail_with(lease, candidate, began, fault, unknown).await,
            PgFault::Outage(outage) => {
                let fault = Fault::new(FaultClass::Environment, None, outage.to_string());
                // While this process was cut off from PostgreSQL that is no message's fault, whichever succeed meanwhile. A connection
                // error that only this run met may be: the server's process may crash at its statement.
                if self.store.away.is_within(self.shared.consumer.lease.time) {
                    return self.put_aside_undecided(lease, candidate, &fault).await;
                }
                self.fail_with(lease, candidate, began, fault, None).await
            }
        }
    }

    async fn fail_with(
        &self,
        lease: &Lease,
        candidate: &Arc<Candidate>,
        began: Began,
        fault: Fault,
        unknown: Option<Reason>,
    ) -> MessageDecision {
        let shared = &*self.shared;
        let retry = &shared.consumer.retry;
        let attempt = lease.attempt();
        shared.counters.metrics.failed(fault.class);
        let (progress, identity) = (&shared.progress, &candidate.identity);
        let run = FailedRun {
            identity,
            class: fault.class,
            // Each run has its own transactions, if any.
            by_itself: true,
            began,
            beside: false,
            again: progress.was_charged_with(identity, fault.code.as_deref()),
        };
        let mut blamed = progress.blame(run, Instant::now());
        if blamed == Blame::Nobody && progress.fails(identity, Instant::now()) != OtherFailures::Others {
            // It may be the only one that fails. It is not run again to find out: a run may call another system.
            progress.undecided(identity, Instant::now(), true);
            tokio::select! {
                () = shared.stop.cancelled() => {}
                () = tokio::time::sleep(HEARING) => {}
            }
            blamed = progress.blame(run, Instant::now());
        }
        let class = match blamed {
            Blame::Message(class) => class,
            Blame::Batch | Blame::Nobody if unknown.is_none() => {
                return self.put_aside_undecided(lease, candidate, &fault.of_nobody()).await;
            }
            Blame::Batch | Blame::Nobody => fault.class,
        };
        let delay = retry.after(attempt).unwrap_or_default();
        let failure = RunFailure {
            error: fault.to_string(),
            reason: unknown.or(final_reason(class)),
            error_code: fault.code.clone(),
            max_attempts: retry.max_attempts,
            delay,
        };
        let recorded = lease.fail(failure).await;
        match recorded {
            RunEndResult::Done(LeaseFailOutcome::Retry { .. }) => {
                progress.charged(identity, fault.code.as_deref());
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

    /// Records that nothing of this run counts any more. The next claim finds the key's new holder.
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

    /// Puts a message aside while its failure's cause is undecided: nothing is counted. A success of another message meanwhile is evidence
    /// against it.
    async fn put_aside_undecided(
        &self,
        lease: &Lease,
        candidate: &Candidate,
        fault: &Fault,
    ) -> MessageDecision {
        let shared = &*self.shared;
        lease.release().await;
        shared.progress.stall();
        let waits = self.put_aside_for(candidate, fault.class);
        let (consumer, identity) = (&shared.consumer.name, &candidate.identity);
        let (tenant, key) = (&identity.tenant, &identity.key);
        match shared.health.stalled(fault, Some(identity)) {
            true => tracing::error!(%consumer, %tenant, %key, sqlstate = fault.code, error = %fault,
                "consumer stalled: no message succeeds; failed messages wait, no attempt is spent"),
            false => tracing::warn!(%consumer, %tenant, %key, sqlstate = fault.code, error = %fault,
                "message failed, and no other succeeded meanwhile; it waits, no attempt is spent"),
        }
        waits
    }

    /// Handles a missing encryption key. A process that has the key can read the stored data, as can this one once it has it: successes of
    /// other messages are no evidence against this one.
    async fn retry_without_key(
        &self,
        lease: &Lease,
        candidate: &Candidate,
        fault: &Fault,
    ) -> MessageDecision {
        let (shared, identity) = (&*self.shared, &candidate.identity);
        lease.release().await;
        // First a pause here, whichever its rung is; the next time it goes back to its queue.
        let waits = self.put_aside_for(candidate, FaultClass::Contention);
        tracing::error!(consumer = %shared.consumer.name, tenant = %identity.tenant, key = %identity.key, error = %fault,
            "encryption key missing in this process; the message is retried, no attempt is spent");
        if shared.progress.tries(identity) % 2 == 1 {
            return waits;
        }
        let delay = shared.consumer.retry.rung_for(Duration::ZERO).unwrap_or_default();
        shared.progress.leaves(identity, Instant::now() + delay);
        Outcome::Postponed { delay }.into()
    }

    /// Counts a run that lost its key to another, and postpones its message.
    fn postpone_fenced(&self, candidate: &Candidate) -> MessageDecision {
        self.shared.counters.metrics.fenced.increment(1);
        self.postpone(candidate, Duration::ZERO)
    }

    /// Stores the letter of a message that is given up; `recorded`: the trail has its row already.
    pub(super) async fn give_up(
        &self,
        candidate: &Arc<Candidate>,
        outcome: Outcome,
        recorded: bool,
    ) -> MessageDecision {
        if recorded {
            let kept = self.keep_letter(candidate, outcome).await;
            return kept.map_or(MessageDecision::Redelivery, MessageDecision::Outcome);
        }
        let noted = self.note_rejected(Candidate::clone(candidate).decided(outcome)).await;
        noted.map_or(MessageDecision::Redelivery, |one| one.outcome.into())
    }
}

/// Returns the reason for which a key is given up at once after such a fault.
fn final_reason(class: FaultClass) -> Option<Reason> {
    match class {
        FaultClass::Rejected => Some(Reason::HandlerRejected),
        FaultClass::Poison => Some(Reason::Poison),
        FaultClass::NotJson => Some(Reason::InvalidJson),
        _ => None,
    }
}
