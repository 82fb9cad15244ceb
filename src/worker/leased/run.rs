//! One message under a lease: claim, run, record, settle.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::amqp::Delivery;
use crate::failpoint::{self, step};
use crate::fault::{Fault, FaultClass};
use crate::handler::lease::{
    Ended, ErasedLeasedHandler, Finish, Lease, LeaseTime, Said, Sessions, Trail, statement,
};
use crate::handler::{HandlerError, Message};
use crate::outcome::{DuplicateSource, Outcome};
use crate::pg::{self, LeaseAnswer, LeaseClaim, LeaseFailed, PgFault};
use crate::reason::{Reason, Rejection};
use crate::worker::batch::prepare::{names_unknown_key, prepare};
use crate::worker::candidate::{Candidate, Known};
use crate::worker::settle::settle;
use crate::worker::shared::Shared;

/// How long a handler has after it was told that its run is over.
const GRACE: Duration = Duration::from_secs(2);
/// Before `worker.shutdown` is over: runs are given back then, so that another worker need not wait for their leases.
const GIVE_BACK: Duration = Duration::from_secs(5);

/// What all runs of a consumer have in common.
pub(super) struct Runner {
    pub(super) shared: Arc<Shared>,
    handler: Arc<dyn ErasedLeasedHandler>,
    sessions: Arc<Sessions>,
    renewals: Arc<Sessions>,
}

/// What became of a message: what the broker is told, or nothing, and it comes again with its channel.
type Decided = Option<Outcome>;

impl Runner {
    pub(super) fn new(
        shared: Arc<Shared>,
        handler: Arc<dyn ErasedLeasedHandler>,
        [sessions, renewals]: [Arc<Sessions>; 2],
    ) -> Self {
        Self { shared, handler, sessions, renewals }
    }

    /// Takes a message in hand until the broker is told of it.
    pub(super) async fn take(&self, delivery: Box<Delivery>) {
        let shared = &*self.shared;
        // Paused, or its channel is gone: it comes again.
        let Some(_at_work) = shared.gate.begin() else { return };
        if delivery.channel.is_over() {
            return;
        }
        self.decide_and_settle(delivery).await;
    }

    /// The same, though nobody has said yet whether the consumer is paused.
    pub(super) async fn decide_and_settle(&self, delivery: Box<Delivery>) {
        let shared = &*self.shared;
        let unknown = shared.keys.are_stale() || names_unknown_key(shared, &delivery);
        if unknown && !self.learn_keys().await {
            return;
        }
        let (delivery, known, outcome) = match prepare(shared, delivery) {
            Ok(candidate) => {
                let known = Known::from(&candidate.identity);
                let candidate = Arc::new(candidate);
                let Some(outcome) = self.decide(&candidate).await else { return };
                let delivery = match Arc::try_unwrap(candidate) {
                    Ok(candidate) => candidate.delivery,
                    Err(held) => held.delivery.clone(),
                };
                (delivery, known, outcome)
            }
            Err(rejected) => {
                let outcome = Outcome::rejected(rejected.rejection);
                let mut one = [(rejected.delivery, rejected.known, outcome)];
                if !self.note_rejected(&mut one).await {
                    return;
                }
                let [one] = one;
                one
            }
        };
        match outcome.completes() {
            true => {
                shared.health.resumed();
                shared.health.completed(shared.clock.now());
            }
            false => shared.health.committed(),
        }
        shared.journal.note(&delivery, &outcome);
        let trace = shared.traces.batch(1);
        if settle(shared, &trace, vec![(delivery, known, outcome)]).await.is_err() {
            tracing::debug!(consumer = %shared.consumer.name, "a message was left to redelivery");
        }
    }

    /// Nothing is judged by keys that lack the one which a message names, or were read long ago. False where the worker stops first.
    async fn learn_keys(&self) -> bool {
        let since = Instant::now();
        let make = || {
            let shared = Arc::clone(&self.shared);
            statement(move |connection| Box::pin(async move { shared.keys.ask(since, connection).await }))
        };
        self.sessions.say(&self.shared.stop, "keys are read", make).await.is_ok()
    }

    /// Claims, and runs what was granted.
    async fn decide(&self, candidate: &Arc<Candidate>) -> Decided {
        let shared = &*self.shared;
        let trail = Trail {
            queue: candidate.delivery.message.queue.clone(),
            worker: shared.worker.clone(),
            trace_id: candidate.delivery.message.trace_id().map(str::to_owned),
        };
        let time = LeaseTime { lease: shared.consumer.lease.time, max_run: shared.consumer.lease.max_run };
        let asked = (Instant::now(), SystemTime::now());
        match self.claim(candidate, &trail, time).await? {
            LeaseAnswer::Granted(granted) => {
                shared.counters.metrics.taken_over.increment(u64::from(granted.taken_over));
                let lease = Lease::new(
                    (Arc::clone(&self.sessions), Arc::clone(&self.renewals)),
                    candidate.identity.clone(),
                    granted,
                    time,
                    trail,
                    asked,
                    shared.abandon.clone(),
                );
                self.run(&lease, candidate).await
            }
            LeaseAnswer::Wait(delay) => Some(self.postponed(delay)),
            LeaseAnswer::Duplicate => {
                let outcome = Outcome::Duplicate(DuplicateSource::Postgres);
                (!shared.list_duplicates || self.list(candidate, &outcome).await).then_some(outcome)
            }
            LeaseAnswer::Reject { rejection, attempt } => {
                let outcome = Outcome::DeadLettered {
                    attempt: attempt.unwrap_or(0),
                    rejection,
                    code: None,
                    letter: None,
                };
                self.given_up(candidate, outcome, attempt.is_some()).await
            }
        }
    }

    /// It comes back when whoever has the key may be done; without retry queues at once, behind the others.
    fn postponed(&self, delay: Duration) -> Outcome {
        Outcome::Postponed { delay: self.shared.consumer.retry.rung_for(delay).unwrap_or_default() }
    }

    /// `None`: nobody settles it.
    async fn claim(&self, candidate: &Arc<Candidate>, trail: &Trail, time: LeaseTime) -> Option<LeaseAnswer> {
        let shared = Arc::clone(&self.shared);
        // Of this acquisition, in each try: a reply may be lost.
        let owner = format!("{} {}", shared.worker.chars().take(100).collect::<String>(), Uuid::now_v7());
        let make = || {
            let (shared, candidate, trail) = (Arc::clone(&shared), Arc::clone(candidate), trail.clone());
            let owner = owner.clone();
            statement(move |connection| {
                Box::pin(async move {
                    let consumer = &shared.consumer;
                    let claim = LeaseClaim {
                        identity: &candidate.identity,
                        fingerprint: candidate.fingerprint.as_ref(),
                        owner: &owner,
                        time: time.lease,
                        max_run: time.max_run,
                        on_conflict: consumer.on_conflict,
                        max_crashes: consumer.retry.max_crashes,
                        queue: &trail.queue,
                        worker: &trail.worker,
                        trace_id: trail.trace_id.as_deref(),
                    };
                    step("lease.claim.before");
                    let answer = pg::take_lease(connection, &claim).await;
                    step("lease.claim.after");
                    answer
                })
            })
        };
        match self.sessions.say(&shared.stop, "a message is claimed", make).await {
            Ok(answer) => Some(answer),
            Err(Said::Fault(fault)) => {
                shared.health.stalled(&fault, None);
                tracing::error!(consumer = %shared.consumer.name, error = %fault, "a message can't be claimed; it comes back");
                Some(LeaseAnswer::Wait(Duration::ZERO))
            }
            Err(Said::Lost | Said::Abandoned) => None,
        }
    }

    /// Runs the handler, and records what came of it.
    async fn run(&self, lease: &Lease, candidate: &Arc<Candidate>) -> Decided {
        let shared = &*self.shared;
        let over = CancellationToken::new();
        // However this ends.
        let _over = over.clone().drop_guard();
        let renewing = tokio::spawn(renew(lease.clone(), over.clone(), shared.consumer.lease.time));
        let handler = {
            let (handler, lease, candidate) =
                (Arc::clone(&self.handler), lease.clone(), Arc::clone(candidate));
            tokio::spawn(failpoint::inherit(async move {
                let message = Message {
                    identity: &candidate.identity,
                    raw: &candidate.delivery.message,
                    attempt: lease.attempt(),
                    is_json: candidate.is_json,
                };
                handler.handle(&lease, message).await
            }))
        };
        let ended = self.watch(lease, handler).await;
        let decided = match ended {
            HandlerEnd::Returned(Ok(finish)) => self.finish(lease, candidate, &finish, None).await,
            HandlerEnd::Returned(Err(error)) => self.failed(lease, candidate, error).await,
            HandlerEnd::Panicked => {
                self.failed(lease, candidate, HandlerError::transient("the handler panicked")).await
            }
            HandlerEnd::TooLong => {
                let limit = shared.consumer.lease.max_run;
                let text = format!("the run took longer than {limit:?} (consumers.lease.max_run)");
                self.failed(lease, candidate, HandlerError::transient(text)).await
            }
            HandlerEnd::Lost => self.lost(lease, "the key was taken over").await,
            HandlerEnd::Stopped => {
                lease.release().await;
                None
            }
        };
        over.cancel();
        if let Err(error) = renewing.await {
            tracing::error!(consumer = %shared.consumer.name, error = %error, "the renewals of a lease have failed");
        }
        decided
    }

    /// Waits for the handler, as long as its run lasts.
    async fn watch(
        &self,
        lease: &Lease,
        mut handler: JoinHandle<Result<Finish, HandlerError>>,
    ) -> HandlerEnd {
        let shared = &*self.shared;
        let stopping = async {
            shared.stop.cancelled().await;
            tokio::time::sleep(shared.shutdown.saturating_sub(GIVE_BACK)).await;
        };
        let why = tokio::select! {
            ended = &mut handler => return HandlerEnd::of(ended),
            () = lease.lost() => HandlerEnd::Lost,
            () = tokio::time::sleep(shared.consumer.lease.max_run) => HandlerEnd::TooLong,
            () = stopping => HandlerEnd::Stopped,
            () = shared.abandon.cancelled() => HandlerEnd::Stopped,
        };
        let _told = lease.give_up();
        if let Ok(ended) = tokio::time::timeout(GRACE, &mut handler).await {
            // In time after all; but what it says of a run that is over counts only where it is done.
            return match (HandlerEnd::of(ended), why) {
                (HandlerEnd::Returned(Ok(finish)), _) => HandlerEnd::Returned(Ok(finish)),
                (_, why) => why,
            };
        }
        handler.abort();
        why
    }

    /// The run is done, or its answer is no.
    async fn finish(
        &self,
        lease: &Lease,
        candidate: &Arc<Candidate>,
        finish: &Finish,
        refused: Option<String>,
    ) -> Decided {
        match lease.complete(finish, refused.is_some()).await {
            Ok(Ended::Done(())) => Some(match refused {
                Some(reason) => Outcome::Refused { attempt: lease.attempt(), reason },
                None => Outcome::Completed {
                    attempt: lease.attempt(),
                    response: finish.response.as_ref().map(ToString::to_string),
                },
            }),
            Ok(Ended::Lost) => self.lost(lease, "its run came to an end, and another one has the key").await,
            Ok(Ended::Abandoned) => None,
            Err(fault) => self.failed_with(lease, candidate, fault, None).await,
        }
    }

    async fn failed(&self, lease: &Lease, candidate: &Arc<Candidate>, error: HandlerError) -> Decided {
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
            PgFault::Fault(fault) => self.failed_with(lease, candidate, fault, unknown).await,
            PgFault::Outage(outage) => {
                let fault = Fault::new(FaultClass::Environment, None, outage.to_string());
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
    ) -> Decided {
        let retry = &self.shared.consumer.retry;
        let attempt = lease.attempt();
        let reason = unknown.or(match fault.class {
            FaultClass::Rejected => Some(Reason::HandlerRejected),
            FaultClass::Poison => Some(Reason::Poison),
            FaultClass::NotJson => Some(Reason::InvalidJson),
            _ => None,
        });
        if reason.is_none() && fault.class == FaultClass::Environment {
            // Not the message's fault: nothing is counted.
            self.shared.health.stalled(&fault, None);
            self.shared.counters.outage();
            lease.release().await;
            return Some(self.postponed(retry.delays.first().copied().unwrap_or_default()));
        }
        let delay = retry.after(attempt).unwrap_or_default();
        let recorded =
            lease.fail(fault.to_string(), reason, fault.code.clone(), retry.max_attempts, delay).await;
        match recorded {
            Ended::Done(LeaseFailed::Retry { .. }) => {
                Some(Outcome::Retried { attempt, delay, code: fault.code, detail: fault.message })
            }
            Ended::Done(LeaseFailed::GivenUp { reason, .. }) => {
                let rejection = Rejection::new(reason, fault.to_string());
                let outcome = Outcome::DeadLettered { attempt, rejection, code: fault.code, letter: None };
                self.given_up(candidate, outcome, true).await
            }
            Ended::Done(LeaseFailed::Completed) => Some(Outcome::Duplicate(DuplicateSource::Postgres)),
            Ended::Done(LeaseFailed::Lost) | Ended::Lost => Some(self.fenced()),
            Ended::Abandoned => None,
        }
    }

    /// Nothing of this run counts any more, and the trail says so. Who has the key is found out by the next claim.
    async fn lost(&self, lease: &Lease, why: &str) -> Decided {
        match lease
            .fail(why.to_owned(), None, None, self.shared.consumer.retry.max_attempts, Duration::ZERO)
            .await
        {
            Ended::Done(LeaseFailed::Completed) => Some(Outcome::Duplicate(DuplicateSource::Postgres)),
            Ended::Done(LeaseFailed::Retry { .. } | LeaseFailed::GivenUp { .. }) => {
                Some(self.postponed(Duration::ZERO))
            }
            Ended::Done(LeaseFailed::Lost) | Ended::Lost => Some(self.fenced()),
            Ended::Abandoned => None,
        }
    }

    /// The key was taken from this run.
    fn fenced(&self) -> Outcome {
        self.shared.counters.metrics.fenced.increment(1);
        self.postponed(Duration::ZERO)
    }

    /// A letter of what is given up; `recorded`: the trail has it already.
    async fn given_up(&self, candidate: &Candidate, outcome: Outcome, recorded: bool) -> Decided {
        let known = Known::from(&candidate.identity);
        let mut one = [(candidate.delivery.clone(), known, outcome)];
        let noted = if recorded {
            self.keep_letter(candidate, &mut one[0].2).await
        } else {
            self.note_rejected(&mut one).await
        };
        let [(_, _, outcome)] = one;
        noted.then_some(outcome)
    }
}

/// How a handler's run ended.
enum HandlerEnd {
    Returned(Result<Finish, HandlerError>),
    Panicked,
    /// After `max_run`.
    TooLong,
    Lost,
    /// The worker stops.
    Stopped,
}

impl HandlerEnd {
    fn of(ended: Result<Result<Finish, HandlerError>, JoinError>) -> Self {
        match ended {
            Ok(returned) => Self::Returned(returned),
            Err(error) => {
                failpoint::ended(error);
                Self::Panicked
            }
        }
    }
}

/// Renews until the run is over: no heartbeat outlives it.
async fn renew(lease: Lease, over: CancellationToken, time: Duration) {
    let mut ticks = tokio::time::interval(time / super::RENEWALS);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        tokio::select! {
            biased;
            () = over.cancelled() => return,
            _ = ticks.tick() => {}
        }
        tokio::select! {
            biased;
            () = over.cancelled() => return,
            renewed = lease.renew() => match renewed {
                Ok(true) => {}
                Ok(false) | Err(Said::Lost) => {
                    let _told = lease.give_up();
                    return;
                }
                Err(Said::Abandoned) => return,
                Err(Said::Fault(fault)) => tracing::warn!(error = %fault, "a lease can't be renewed"),
            },
        }
    }
}
