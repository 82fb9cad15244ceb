//! What is recorded of a run's end, and what the broker is told of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::runner::{Decided, Runner};
use crate::blame::Blame;
use crate::fault::{Fault, FaultClass};
use crate::handler::HandlerError;
use crate::handler::lease::{Ended, Failure, Finish, Lease};
use crate::outcome::{DuplicateSource, Outcome};
use crate::pg::{LeaseFailed, PgFault};
use crate::reason::{Reason, Rejection};
use crate::witnesses::{Company, HEARING};
use crate::worker::candidate::{Candidate, Known};
use crate::worker::progress::FailedRun;

impl Runner {
    /// The run is done, or its answer is no.
    pub(super) async fn finish(
        &self,
        lease: &Lease,
        candidate: &Arc<Candidate>,
        finish: &Finish,
        refused: Option<String>,
    ) -> Option<Decided> {
        match lease.complete(finish, refused.is_some(), candidate.fingerprint).await {
            Ok(Ended::Done(())) => {
                let outcome = match refused {
                    Some(reason) => Outcome::Refused { attempt: lease.attempt(), reason },
                    None => Outcome::Completed {
                        attempt: lease.attempt(),
                        response: finish.response.as_ref().map(ToString::to_string),
                    },
                };
                Some(outcome.into())
            }
            Ok(Ended::Lost) => {
                self.lost(lease, candidate, "its run came to an end, and another one has the key").await
            }
            Ok(Ended::Abandoned) => None,
            Err(fault) => self.failed_with(lease, candidate, fault, None).await,
        }
    }

    pub(super) async fn failed(
        &self,
        lease: &Lease,
        candidate: &Arc<Candidate>,
        error: HandlerError,
    ) -> Option<Decided> {
        let unknown = matches!(error, HandlerError::OutcomeUnknown(_)).then_some(Reason::OutcomeUnknown);
        match error.into_fault() {
            PgFault::Fault(fault) if fault.class == FaultClass::Refused => {
                let answer = Finish::response(serde_json::json!({ "refused": fault.message }));
                match answer {
                    Ok(answer) => {
                        // Nothing of a lost run is recorded, its "no" neither.
                        Box::pin(self.finish(lease, candidate, &answer, Some(fault.message))).await
                    }
                    Err(_) => None,
                }
            }
            PgFault::Fault(fault) if fault.class == FaultClass::Environment && lease.lacks_key() => {
                Some(self.lacking(lease, candidate, &fault).await)
            }
            PgFault::Fault(fault) => self.failed_with(lease, candidate, fault, unknown).await,
            PgFault::Outage(outage) => {
                let fault = Fault::new(FaultClass::Environment, None, outage.to_string());
                // While this process was cut off from PostgreSQL that is no message's fault, whichever succeed meanwhile. An error of a
                // connection that only this run has met may be: the server's process may die of its statement.
                if self.lines.away.is_within(self.shared.consumer.lease.time) {
                    return Some(self.undecided(lease, candidate, &fault).await);
                }
                self.failed_with(lease, candidate, fault, None).await
            }
        }
    }

    async fn failed_with(
        &self,
        lease: &Lease,
        candidate: &Arc<Candidate>,
        fault: Fault,
        unknown: Option<Reason>,
    ) -> Option<Decided> {
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
            witness: false,
            again: progress.was_charged_with(identity, fault.code.as_deref()),
            is_last: attempt >= retry.max_attempts,
        };
        let mut blamed = progress.blame(run, Instant::now());
        if blamed == Blame::Nobody && progress.fails(identity, Instant::now()) != Company::Others {
            // It may be alone. Not run again to find out: that may be a call.
            progress.undecided(identity, Instant::now(), true);
            tokio::select! {
                () = shared.stop.cancelled() => {}
                () = tokio::time::sleep(HEARING) => {}
            }
            if !progress.has_witness(identity, Instant::now()) {
                blamed = progress.blame(run, Instant::now());
            }
        }
        let class = match blamed {
            Blame::Message(class) => class,
            Blame::Batch | Blame::Nobody if unknown.is_none() => {
                return Some(self.undecided(lease, candidate, &fault.of_nobody()).await);
            }
            Blame::Batch | Blame::Nobody => fault.class,
        };
        let reason = unknown.or(match class {
            FaultClass::Rejected => Some(Reason::HandlerRejected),
            FaultClass::Poison => Some(Reason::Poison),
            FaultClass::NotJson => Some(Reason::InvalidJson),
            _ => None,
        });
        let delay = retry.after(attempt).unwrap_or_default();
        let failure = Failure {
            error: fault.to_string(),
            reason,
            error_code: fault.code.clone(),
            max_attempts: retry.max_attempts,
            delay,
        };
        let recorded = lease.fail(failure).await;
        match recorded {
            Ended::Done(LeaseFailed::Retry { .. }) => {
                progress.charged(identity, fault.code.as_deref());
                Some(Outcome::Retried { attempt, delay, code: fault.code, detail: fault.message }.into())
            }
            Ended::Done(LeaseFailed::GivenUp { reason, .. }) => {
                let rejection = Rejection::new(reason, fault.to_string());
                let outcome = Outcome::DeadLettered { attempt, rejection, code: fault.code, letter: None };
                self.given_up(candidate, outcome, true).await
            }
            Ended::Done(LeaseFailed::Completed) => Some(Outcome::Duplicate(DuplicateSource::Postgres).into()),
            Ended::Done(LeaseFailed::Lost) | Ended::Lost => Some(self.fenced(candidate)),
            Ended::Abandoned => None,
        }
    }

    /// Nothing of this run counts any more, and the trail says so. Who has the key is found out by the next claim.
    pub(super) async fn lost(&self, lease: &Lease, candidate: &Arc<Candidate>, why: &str) -> Option<Decided> {
        // It was only believed to be lost, or its time was over and nobody has taken it: the message has done nothing wrong.
        if lease.release().await == Some(true) {
            return Some(self.postpone(candidate, Duration::ZERO));
        }
        let max_attempts = self.shared.consumer.retry.max_attempts;
        let failure = Failure {
            error: why.to_owned(),
            reason: None,
            error_code: None,
            max_attempts,
            delay: Duration::ZERO,
        };
        match lease.fail(failure).await {
            Ended::Done(LeaseFailed::Completed) => Some(Outcome::Duplicate(DuplicateSource::Postgres).into()),
            Ended::Done(LeaseFailed::Retry { .. } | LeaseFailed::GivenUp { .. }) => {
                Some(self.postpone(candidate, Duration::ZERO))
            }
            Ended::Done(LeaseFailed::Lost) | Ended::Lost => Some(self.fenced(candidate)),
            Ended::Abandoned => None,
        }
    }

    /// Nobody answers for this failure yet: nothing is counted, and it waits aside. A message that succeeds meanwhile is its witness.
    async fn undecided(&self, lease: &Lease, candidate: &Candidate, fault: &Fault) -> Decided {
        let shared = &*self.shared;
        lease.release().await;
        shared.progress.stall();
        let waits = self.waits(candidate, fault.class);
        let (consumer, identity) = (&shared.consumer.name, &candidate.identity);
        let (tenant, key) = (&identity.tenant, &identity.key);
        match shared.health.stalled(fault, Some(identity)) {
            true => tracing::error!(%consumer, %tenant, %key, sqlstate = fault.code, error = %fault,
                "no message succeeds: those that failed wait, each new one is tried; no attempt is spent"),
            false => tracing::warn!(%consumer, %tenant, %key, sqlstate = fault.code, error = %fault,
                "a message has failed, and none has succeeded beside it: it waits; no attempt is spent"),
        }
        waits
    }

    /// What was stored can be read where its key is, which may be another process, or this one once it has it: whoever succeeds meanwhile
    /// says nothing of this message.
    async fn lacking(&self, lease: &Lease, candidate: &Candidate, fault: &Fault) -> Decided {
        let (shared, identity) = (&*self.shared, &candidate.identity);
        lease.release().await;
        // A pause here, whatever its rung is; the next time it goes back to its queue.
        let waits = self.waits(candidate, FaultClass::Contention);
        tracing::error!(consumer = %shared.consumer.name, tenant = %identity.tenant, key = %identity.key, error = %fault,
            "a key of [encryption] is missing here: the message comes back; no attempt is spent");
        if shared.progress.tries(identity) % 2 == 1 {
            return waits;
        }
        let delay = shared.consumer.retry.rung_for(Duration::ZERO).unwrap_or_default();
        shared.progress.leaves(identity, Instant::now() + delay);
        Outcome::Postponed { delay }.into()
    }

    /// The key was taken from this run.
    fn fenced(&self, candidate: &Candidate) -> Decided {
        self.shared.counters.metrics.fenced.increment(1);
        self.postpone(candidate, Duration::ZERO)
    }

    /// A letter of what is given up; `recorded`: the trail has it already.
    pub(super) async fn given_up(
        &self,
        candidate: &Arc<Candidate>,
        outcome: Outcome,
        recorded: bool,
    ) -> Option<Decided> {
        if recorded {
            return self.keep_letter(candidate, outcome).await.map(Decided::Told);
        }
        let known = Known::from(&candidate.identity);
        let noted = self.note_rejected((candidate.delivery.clone(), known, outcome)).await?;
        let (_, _, outcome) = noted;
        Some(outcome.into())
    }
}
