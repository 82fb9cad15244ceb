//! One message under a lease: claim, run, record, settle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use futures::FutureExt as _;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::runner::{MessageDecision, PendingClaim, Runner, SendTime, TimedAnswer};
use super::waiting::{RunAdmission, RunIsolation};
use crate::worker::batch::prepare::{names_unknown_signing_key, prepare};
use crate::worker::candidate::{Candidate, DecidedDelivery};
use crate::worker::intake::aside::BatchOrigin;
use crate::worker::settle::settle;
use crate::worker::undecided::abandon_deliveries;
use oncely_amqp::Delivery;
use oncely_core::fault::FaultClass;
use oncely_core::outcome::{DuplicateSource, Outcome};
use oncely_failpoint::{self as failpoint, step};
use oncely_handler::lease::{Finish, Lease};
use oncely_handler::{HandlerError, Message};
use oncely_lease::{DualInstant, Grant, LeaseId, Run, RunTrail, StatementError, build_statement};
use oncely_postgres::{self as pg, GrantedLease, LeaseClaimOutcome};
use oncely_process::witnesses::Began;

/// Time that a handler has after it learns that its run is over.
const END_GRACE: Duration = Duration::from_secs(2);
/// Time to record that a run was too long.
const RECORD_TIME: Duration = Duration::from_secs(1);
/// Time before the end of `worker.shutdown` at which runs are given back, so that another worker need not wait for their leases.
const GIVE_BACK_TIME: Duration = Duration::from_secs(5);

/// Name of the claim in the log.
const CLAIM_ACTION: &str = "claim a message";

impl Runner {
    /// Processes a message until it is settled or waits aside.
    pub(super) async fn process(
        &self,
        mut delivery: Box<Delivery>,
        origin: BatchOrigin,
        permit: OwnedSemaphorePermit,
    ) {
        let shared = &*self.shared;
        // A message that has come ahead of a pause waits: its channel stays open while earlier runs last, which may be long after the pause.
        let mut pauses = shared.gate.watch();
        let _at_work = loop {
            let at_work = shared.gate.begin_batch();
            if delivery.channel.is_over() || shared.stop.is_cancelled() {
                return abandon_deliveries(shared, vec![delivery]).await;
            }
            match at_work {
                Some(at_work) => break at_work,
                None => tokio::select! {
                    () = shared.stop.cancelled() => {}
                    () = pauses.wait_until_open() => {}
                },
            }
        };
        delivery.unpark();
        self.run_and_settle(delivery, origin, Some(permit)).await;
    }

    /// Runs and settles a message, also while it is unknown whether the consumer is paused. Releases the permit once the handler has ended,
    /// or the message is decided without it.
    pub(super) async fn run_and_settle(
        &self,
        delivery: Box<Delivery>,
        origin: BatchOrigin,
        mut permit: Option<OwnedSemaphorePermit>,
    ) {
        let shared = &*self.shared;
        let lacks_keys = shared.keys.are_stale() || names_unknown_signing_key(shared, &delivery);
        if lacks_keys && !self.refresh_keys().await {
            return;
        }
        let settled = match prepare(shared, delivery) {
            Ok(candidate) => {
                let candidate = Arc::new(candidate);
                let began = shared.progress.begin();
                let decision = self.claim_and_run(&candidate, began, &mut permit).await;
                let identity = candidate.identity.clone();
                let outcome = match decision {
                    MessageDecision::Outcome(outcome) => outcome,
                    MessageDecision::Redelivery => return,
                    MessageDecision::Aside { cause, wait, since } => {
                        let journal = Outcome::Postponed { delay: wait };
                        shared.journal.record(&candidate.delivery, &journal);
                        drop(permit);
                        let delivery = into_delivery(candidate);
                        return self.put_aside(origin, (cause, wait, since), &identity, delivery).await;
                    }
                };
                self.record_outcome(&candidate, began, &outcome);
                DecidedDelivery { delivery: into_delivery(candidate), identity: (&identity).into(), outcome }
            }
            Err(rejected) => {
                let Some(one) = self.record_rejected(DecidedDelivery::from(*rejected)).await else { return };
                shared.health.record_statement_success();
                one
            }
        };
        shared.journal.record(&settled.delivery, &settled.outcome);
        // Its copy may take long to arrive.
        drop(permit);
        self.settle(settled).await;
    }

    /// Settles a decided message, and sends the acknowledgements that are held back on its channel.
    pub(super) async fn settle(&self, settled: DecidedDelivery) {
        let shared = &*self.shared;
        let channel = Arc::clone(&settled.delivery.channel);
        let trace = shared.traces.begin_batch(1);
        if settle(shared, &trace, vec![settled]).await.is_err() {
            tracing::debug!(consumer = %shared.consumer.name, "message left to redelivery");
        }
        // An acknowledgement held back behind a long run would keep its place in the prefetch idle.
        if let Err(error) = channel.release().await {
            tracing::debug!(consumer = %shared.consumer.name, error = %error, "acknowledgements did not arrive");
        }
    }

    /// Records an outcome for the attribution of other failures and for the consumer's health. A success brings back messages that waited
    /// for one.
    fn record_outcome(&self, candidate: &Candidate, began: Began, outcome: &Outcome) {
        let shared = &*self.shared;
        if outcome.has_completed_key() {
            shared.health.record_completion(shared.clock.now());
        }
        if let Outcome::Postponed { delay } = outcome {
            // It does not wait in this process any more.
            shared.progress.record_departure(&candidate.identity, tokio::time::Instant::now() + *delay);
        }
        if shared.progress.record_outcomes(began, std::iter::once((&candidate.identity, outcome))) {
            self.failed.store(0, Ordering::Relaxed);
            if self.arrivals.aside.resume(tokio::time::Instant::now()) {
                tracing::info!(consumer = %shared.consumer.name, "a message succeeded; consuming continues");
            }
        }
        match shared.progress.is_stalled() {
            true => shared.health.record_statement_success(),
            false => shared.health.record_resumption(),
        }
    }

    /// Reads the keys, so that no message is prepared without the key that it names, or with keys read long ago. Returns false if the
    /// worker stops first.
    async fn refresh_keys(&self) -> bool {
        let since = Instant::now();
        let make = || {
            let shared = Arc::clone(&self.shared);
            build_statement(move |connection| {
                Box::pin(async move { shared.keys.refresh(since, connection).await })
            })
        };
        self.store.own.run_until_answered(&self.shared.stop, "read keys", make).await.is_ok()
    }

    /// Waits until it may run in its isolation, claims the message's key, and runs the handler if the claim is granted; returns the decision
    /// about the message. Releases the permit once the handler has ended.
    async fn claim_and_run(
        &self,
        candidate: &Arc<Candidate>,
        began: Began,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> MessageDecision {
        let shared = &*self.shared;
        let trail = Arc::new(RunTrail {
            queue: candidate.delivery.message.queue.clone(),
            worker: shared.worker.clone(),
            trace_id: candidate.delivery.message.trace_id().map(str::to_owned),
        });
        let mut isolation = self.isolation(candidate);
        loop {
            let admitted = match self.wait_for_permit(isolation).await {
                RunAdmission::Granted(admitted) => admitted,
                RunAdmission::Busy(why) => return self.decide_suspect(candidate, why),
                RunAdmission::Stopping => return MessageDecision::Redelivery,
            };
            let Some((lease_answer, sent_at)) = self.claim(candidate, &trail).await else {
                return MessageDecision::Redelivery;
            };
            match lease_answer {
                LeaseClaimOutcome::Granted(granted) => {
                    let is_taken_over = granted.crashes > 0 && isolation == RunIsolation::Shared;
                    shared.counters.metrics.taken_over.increment(u64::from(is_taken_over));
                    let is_suspect =
                        isolation == RunIsolation::Shared && self.is_suspect(candidate, granted.crashes);
                    let lease = self.create_lease(candidate, &trail, (granted, sent_at));
                    if is_suspect {
                        // A message does not wait while it holds its key: a crash of the process meanwhile would count as its own.
                        lease.release().await;
                        isolation = RunIsolation::Alone;
                        continue;
                    }
                    return self.run_handler(&lease, sent_at.0, candidate, began, permit).await;
                }
                LeaseClaimOutcome::InFlight(delay) => {
                    drop(admitted);
                    return self.decide_in_flight(candidate, delay).await;
                }
                LeaseClaimOutcome::Locked => return self.decide_aside(candidate, FaultClass::Contention),
                LeaseClaimOutcome::Wait(delay) => return self.postpone(candidate, delay),
                LeaseClaimOutcome::Duplicate => {
                    let outcome = Outcome::Duplicate(DuplicateSource::Postgres);
                    let listed = !shared.list_duplicates || self.record_duplicate(candidate, &outcome).await;
                    return if listed { outcome.into() } else { MessageDecision::Redelivery };
                }
                LeaseClaimOutcome::Reject { rejection, attempt } => {
                    let outcome = Outcome::DeadLettered {
                        attempt: attempt.unwrap_or(0),
                        rejection,
                        code: None,
                        letter: None,
                    };
                    return self.give_up(candidate, outcome, attempt.is_some()).await;
                }
            }
        }
    }

    /// Creates the handler's lease for a granted claim, whose time counts from when the claim was sent.
    fn create_lease(
        &self,
        candidate: &Candidate,
        trail: &Arc<RunTrail>,
        (granted, sent_at): (GrantedLease, SendTime),
    ) -> Lease {
        let shared = &*self.shared;
        let GrantedLease { token, attempt, crashes } = granted;
        let held = LeaseId { identity: candidate.identity.clone(), token };
        let grant = Grant { token, attempt, is_takeover: crashes > 0 };
        let time = &shared.consumer.lease;
        let (belief, sealer) = (DualInstant::from_times(sent_at), shared.sealer());
        let store = Arc::clone(&self.store);
        let run = Run::new(store, held, grant, time.time, belief, sealer, shared.abandon.clone());
        Lease::new(run, time.max_run, Arc::clone(trail))
    }

    /// Claims the key, and retries until PostgreSQL answers or the worker stops. Returns `None` if the message is left to redelivery.
    async fn claim(&self, candidate: &Arc<Candidate>, trail: &Arc<RunTrail>) -> Option<TimedAnswer> {
        let shared = &*self.shared;
        // Names this acquisition in each try: a reply may be lost. 62 random bits, not a whole UUID: each claim writes them. An owner has
        // 255 bytes at most, and a character up to four.
        let (_, acquisition) = Uuid::new_v4().as_u64_pair();
        let owner = format!("{} {acquisition:016x}", shared.worker.chars().take(50).collect::<String>());
        // A try was sent, and not answered: its transaction may still be open, or have granted the key.
        let unanswered = Arc::new(AtomicBool::new(false));
        let send_claim = || {
            let (candidate, trail, owner) = (Arc::clone(candidate), Arc::clone(trail), owner.clone());
            let may_take_over = !self.store.last_outage.is_within(shared.consumer.lease.time);
            let has_left = Arc::new(AtomicBool::new(false));
            let unanswered = Arc::clone(&unanswered);
            let pending_claim =
                PendingClaim { candidate, trail, owner, may_take_over, has_left: Arc::clone(&has_left) };
            let result = self.claims.submit(pending_claim);
            async move {
                match result.await {
                    // An open transaction holds the key. Its end decides whether the key is run, so the message waits without a place.
                    // Unless the transaction may be one of this claim: no other process would run the message that it was granted.
                    Err(error) if pg::is_locked(&error) && !unanswered.load(Ordering::Relaxed) => {
                        Ok(build_locked_answer())
                    }
                    Err(error) if pg::is_outage(&error) => {
                        unanswered.fetch_or(has_left.load(Ordering::Relaxed), Ordering::Relaxed);
                        Err(error)
                    }
                    result => result,
                }
            }
            .boxed()
        };
        step("lease.claim.before");
        let result = self.store.own.retry_until_answered(&shared.stop, CLAIM_ACTION, send_claim).await;
        step("lease.claim.after");
        match result {
            Ok(answer) => Some(answer),
            Err(StatementError::Refused(fault)) => {
                shared.health.record_stall(&fault, None);
                shared.counters.count_outage();
                tracing::error!(consumer = %shared.consumer.name, error = %fault,
                    "cannot claim a message; it is retried");
                Some(build_locked_answer())
            }
            Err(StatementError::Unavailable(_)) if unanswered.load(Ordering::Relaxed) => {
                // The worker stops, and would leave a key held without a run: that would count as a crash. After the lease's time it is too
                // late.
                let release = self.store.own.retry_until_answered(&shared.abandon, CLAIM_ACTION, send_claim);
                let result = tokio::time::timeout(shared.consumer.lease.time, release).await;
                if let Ok(Ok((LeaseClaimOutcome::Granted(granted), sent_at))) = result {
                    self.create_lease(candidate, trail, (granted, sent_at)).release().await;
                }
                None
            }
            Err(StatementError::Lost | StatementError::Unavailable(_)) => None,
        }
    }

    /// Runs the handler, and records the result. `claim_sent_at`: when the granted claim was sent.
    async fn run_handler(
        &self,
        lease: &Lease,
        claim_sent_at: Instant,
        candidate: &Arc<Candidate>,
        run_began: Began,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> MessageDecision {
        let shared = &*self.shared;
        // Early enough for its failure to be recorded before the key may be taken over: the server counts from the claim.
        let deadline = claim_sent_at + shared.consumer.lease.max_run.saturating_sub(END_GRACE + RECORD_TIME);
        // No renewal outlives the run, however it ends.
        let _heartbeat =
            AbortOnDropHandle::new(tokio::spawn(lease.run().clone().run_heartbeat(deadline.into())));
        let began = Instant::now();
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
        let end = self.wait_for_handler(lease, handler, deadline.into()).await;
        // The next handler may begin while this one's result is recorded.
        drop(permit.take());
        let is_done = matches!(end, HandlerEnd::Returned(Ok(_)));
        shared.counters.metrics.record_handler_call(began.elapsed(), is_done);
        match end {
            HandlerEnd::Returned(Ok(finish)) => self.finish(lease, candidate, run_began, &finish, None).await,
            HandlerEnd::Returned(Err(error)) => self.fail(lease, candidate, run_began, error).await,
            HandlerEnd::Panicked => {
                self.fail(lease, candidate, run_began, HandlerError::transient("the handler panicked")).await
            }
            HandlerEnd::TooLong => {
                let limit = shared.consumer.lease.max_run;
                let text = format!("the run took longer than {limit:?} (consumers.lease.max_run)");
                self.fail(lease, candidate, run_began, HandlerError::transient(text)).await
            }
            HandlerEnd::Lost => self.record_loss(lease, candidate, "the key was taken over").await,
            HandlerEnd::Stopped => {
                lease.release().await;
                MessageDecision::Redelivery
            }
        }
    }

    /// Waits for the handler's end, as long as its run lasts; aborts it after that. If the key is another run's, a call that is not
    /// repeated goes on without the message, until `deadline`.
    async fn wait_for_handler(
        &self,
        lease: &Lease,
        mut handler: JoinHandle<Result<Finish, HandlerError>>,
        deadline: tokio::time::Instant,
    ) -> HandlerEnd {
        let shared = &*self.shared;
        let mut stopping = Box::pin({
            let shared = Arc::clone(&self.shared);
            async move {
                shared.stop.cancelled().await;
                tokio::time::sleep(shared.shutdown.saturating_sub(GIVE_BACK_TIME)).await;
            }
        });
        let run = lease.run();
        let lost = || if run.is_too_long() { HandlerEnd::TooLong } else { HandlerEnd::Lost };
        let end = tokio::select! {
            result = &mut handler => return match HandlerEnd::from_join(result) {
                // The handler may learn first that its lease is lost: no failure of its own.
                HandlerEnd::Returned(Err(_)) if run.is_lost() => lost(),
                result => result,
            },
            () = run.wait_until_lost() => lost(),
            () = &mut stopping => HandlerEnd::Stopped,
            () = shared.abandon.cancelled() => HandlerEnd::Stopped,
        };
        run.stop();
        if let Ok(result) = tokio::time::timeout(END_GRACE, &mut handler).await {
            // Not too late after all; but after the end of its run only a success counts.
            return match (HandlerEnd::from_join(result), end) {
                (HandlerEnd::Returned(Ok(finish)), _) => HandlerEnd::Returned(Ok(finish)),
                (_, end) => end,
            };
        }
        // As many as there are places: their messages, which are decided, count against the buffer until then.
        let most = usize::try_from(shared.consumer.lease.concurrency).unwrap_or(1);
        if matches!(end, HandlerEnd::Lost) && run.is_calling() && self.calls.len() < most {
            let (lease, abandon) = (lease.clone(), shared.abandon.clone());
            self.calls.spawn(failpoint::inherit(async move {
                tokio::select! {
                    () = lease.run().wait_until_not_calling() => {}
                    () = tokio::time::sleep_until(deadline) => {}
                    () = stopping => {}
                    () = abandon.cancelled() => {}
                }
                handler.abort();
                // The lease is lost: its result changes nothing.
                drop(handler.await.map_err(failpoint::propagate_end));
                lease.run().store_unrecorded_outcomes().await;
            }));
        } else {
            handler.abort();
            // The handler is dropped at its next await; the outcomes that are not stored yet are stored at the run's end.
            if let Ok(result) = tokio::time::timeout(RECORD_TIME / 2, handler).await {
                drop(result.map_err(failpoint::propagate_end));
            }
        }
        end
    }
}

/// End of a handler's run.
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
    fn from_join(ended: Result<Result<Finish, HandlerError>, JoinError>) -> Self {
        match ended {
            Ok(returned) => Self::Returned(returned),
            Err(error) => {
                failpoint::propagate_end(error);
                Self::Panicked
            }
        }
    }
}

/// Creates the answer for a key that an open transaction holds.
fn build_locked_answer() -> TimedAnswer {
    (LeaseClaimOutcome::Locked, (Instant::now(), SystemTime::now()))
}

/// Takes the delivery out of its candidate; copies it if a task still shares the candidate.
fn into_delivery(candidate: Arc<Candidate>) -> Box<Delivery> {
    match Arc::try_unwrap(candidate) {
        Ok(candidate) => candidate.delivery,
        Err(held) => held.delivery.clone(),
    }
}
