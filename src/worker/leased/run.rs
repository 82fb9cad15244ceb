//! One message under a lease: claim, run, record, settle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use futures::FutureExt as _;
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use super::runner::{Answered, Claiming, Decided, Left, Runner};
use super::waiting::Room;
use crate::amqp::Delivery;
use crate::failpoint::step;
use crate::fault::FaultClass;
use crate::handler::lease::{Claimed, Lease, LeaseTime, Said, Trail, statement};
use crate::outcome::{DuplicateSource, Outcome};
use crate::pg::{self, Granted, LeaseAnswer};
use crate::worker::batch::prepare::{names_unknown_key, prepare};
use crate::worker::candidate::{Candidate, Known};
use crate::worker::gone::let_go;
use crate::worker::intake::arrivals::Taken;
use crate::worker::settle::settle;

impl Runner {
    /// Takes a message in hand until the broker is told of it, or it waits aside.
    pub(super) async fn take(&self, mut delivery: Box<Delivery>, taken: Taken, place: OwnedSemaphorePermit) {
        let shared = &*self.shared;
        let at_work = shared.gate.begin();
        // Paused, or its channel is gone: it comes again.
        if at_work.is_none() || delivery.channel.is_over() {
            return let_go(shared, taken, vec![delivery]);
        }
        delivery.unpark();
        self.decide_and_settle(delivery, taken, Some(place)).await;
    }

    /// The same, though nobody has said yet whether the consumer is paused. The place is free once it is decided.
    pub(super) async fn decide_and_settle(
        &self,
        delivery: Box<Delivery>,
        taken: Taken,
        place: Option<OwnedSemaphorePermit>,
    ) {
        let shared = &*self.shared;
        let unknown = shared.keys.are_stale() || names_unknown_key(shared, &delivery);
        if unknown && !self.learn_keys().await {
            return;
        }
        let settled = match prepare(shared, delivery) {
            Ok(candidate) => {
                let candidate = Arc::new(candidate);
                let Some(decided) = self.decide(&candidate).await else { return };
                let identity = candidate.identity.clone();
                let outcome = match decided {
                    Decided::Told(outcome) => outcome,
                    Decided::Aside(cause, wait, since) => {
                        let journal = Outcome::Postponed { delay: wait };
                        shared.journal.note(&candidate.delivery, &journal);
                        drop(place);
                        let delivery = delivery_of(candidate);
                        return self.put_aside(taken, (cause, wait, since), &identity, delivery).await;
                    }
                };
                self.note(&candidate, &outcome);
                (delivery_of(candidate), Known::from(&identity), outcome)
            }
            Err(rejected) => {
                let outcome = Outcome::rejected(rejected.rejection);
                let Some(one) = self.note_rejected((rejected.delivery, rejected.known, outcome)).await else {
                    return;
                };
                shared.health.committed();
                one
            }
        };
        shared.journal.note(&settled.0, &settled.2);
        // Its copy may be long in coming.
        drop(place);
        self.settle(settled).await;
    }

    pub(super) async fn settle(&self, settled: (Box<Delivery>, Known, Outcome)) {
        let shared = &*self.shared;
        let channel = Arc::clone(&settled.0.channel);
        let trace = shared.traces.batch(1);
        if settle(shared, &trace, vec![settled]).await.is_err() {
            tracing::debug!(consumer = %shared.consumer.name, "a message was left to redelivery");
        }
        // Held back behind a run that lasts, it would keep its place idle.
        if let Err(error) = channel.release().await {
            tracing::debug!(consumer = %shared.consumer.name, error = %error, "acknowledgements did not arrive");
        }
    }

    /// For those whose failure is judged by who else succeeds, and for whoever asks how the consumer fares.
    fn note(&self, candidate: &Candidate, outcome: &Outcome) {
        let shared = &*self.shared;
        if outcome.completes() {
            shared.health.completed(shared.clock.now());
        }
        if let Outcome::Postponed { delay } = outcome {
            // It does not wait in this process any more.
            shared.progress.leaves(&candidate.identity, tokio::time::Instant::now() + *delay);
        }
        if shared.progress.note(std::iter::once((&candidate.identity, outcome))) {
            self.failed.store(0, Ordering::Relaxed);
            if self.arrivals.aside.resume(tokio::time::Instant::now()) {
                tracing::info!(consumer = %shared.consumer.name, "a message has succeeded: consuming goes on");
            }
        }
        match shared.progress.is_stalled() {
            true => shared.health.committed(),
            false => shared.health.resumed(),
        }
    }

    /// Nothing is judged by keys that lack the one which a message names, or were read long ago. False where the worker stops first.
    async fn learn_keys(&self) -> bool {
        let since = Instant::now();
        let make = || {
            let shared = Arc::clone(&self.shared);
            statement(move |connection| Box::pin(async move { shared.keys.ask(since, connection).await }))
        };
        self.lines.own.say(&self.shared.stop, "keys are read", make).await.is_ok()
    }

    /// Claims, and runs what was granted.
    async fn decide(&self, candidate: &Arc<Candidate>) -> Option<Decided> {
        let shared = &*self.shared;
        let trail = Trail {
            queue: candidate.delivery.message.queue.clone(),
            worker: shared.worker.clone(),
            trace_id: candidate.delivery.message.trace_id().map(str::to_owned),
        };
        let mut room = Room::Shared;
        loop {
            let Some(right) = self.enter(room).await? else {
                // It must be alone, and others are at work.
                return Some(self.waits(candidate, FaultClass::Contention));
            };
            let (answer, left) = self.claim(candidate, &trail).await?;
            match answer {
                LeaseAnswer::Granted(granted) => {
                    let is_taken_over = granted.crashes > 0 && room == Room::Shared;
                    shared.counters.metrics.taken_over.increment(u64::from(is_taken_over));
                    let is_suspect = room == Room::Shared && self.is_suspect(candidate, granted.crashes);
                    let lease = self.lease(candidate, &trail, (granted, left));
                    if is_suspect {
                        // Nobody waits with a key in hand: if the process dies meanwhile, that would count as one more death in it.
                        lease.release().await;
                        room = Room::Alone;
                        continue;
                    }
                    return self.run(&lease, left.0, candidate).await;
                }
                LeaseAnswer::InFlight(delay) => {
                    drop(right);
                    return self.in_flight(candidate, delay).await;
                }
                LeaseAnswer::Locked => return Some(self.waits(candidate, FaultClass::Contention)),
                LeaseAnswer::Wait(delay) => return Some(self.postpone(candidate, delay)),
                LeaseAnswer::Duplicate => {
                    let outcome = Outcome::Duplicate(DuplicateSource::Postgres);
                    let listed = !shared.list_duplicates || self.list(candidate, &outcome).await;
                    return listed.then_some(outcome.into());
                }
                LeaseAnswer::Reject { rejection, attempt } => {
                    let outcome = Outcome::DeadLettered {
                        attempt: attempt.unwrap_or(0),
                        rejection,
                        code: None,
                        letter: None,
                    };
                    return self.given_up(candidate, outcome, attempt.is_some()).await;
                }
            }
        }
    }

    fn lease(&self, candidate: &Candidate, trail: &Trail, (granted, asked): (Granted, Left)) -> Lease {
        let shared = &*self.shared;
        let time = LeaseTime { lease: shared.consumer.lease.time, max_run: shared.consumer.lease.max_run };
        let identity = candidate.identity.clone();
        Lease::new(
            self.lines.clone(),
            Claimed { identity, granted, asked },
            time,
            shared.sealer(),
            trail.clone(),
            shared.abandon.clone(),
        )
    }

    /// `None`: nobody settles it.
    async fn claim(&self, candidate: &Arc<Candidate>, trail: &Trail) -> Option<Answered> {
        let shared = &*self.shared;
        // Of this acquisition, in each try: a reply may be lost. 62 random bits, and not all of a UUID: each claim writes them. An owner has 255
        // bytes at most, and a character up to four.
        let (_, acquisition) = Uuid::new_v4().as_u64_pair();
        let owner = format!("{} {acquisition:016x}", shared.worker.chars().take(50).collect::<String>());
        // A try was sent, and not answered: its transaction may still be open, or have granted the key.
        let unanswered = Arc::new(AtomicBool::new(false));
        let ask = || {
            let (candidate, trail, owner) = (Arc::clone(candidate), trail.clone(), owner.clone());
            let may_take_over = !self.lines.away.is_within(shared.consumer.lease.time);
            let has_left = Arc::new(AtomicBool::new(false));
            let unanswered = Arc::clone(&unanswered);
            let claiming =
                Claiming { candidate, trail, owner, may_take_over, has_left: Arc::clone(&has_left) };
            let claimed = self.claims.say(claiming);
            async move {
                match claimed.await {
                    // An open transaction holds the key. Whether anybody runs it is known only at that one's end, so it waits, and keeps no
                    // place. Unless it may be our own: nobody else would run what that one was granted.
                    Err(error) if pg::is_locked(&error) && !unanswered.load(Ordering::Relaxed) => {
                        Ok(locked())
                    }
                    Err(error) if pg::is_outage(&error) => {
                        unanswered.fetch_or(has_left.load(Ordering::Relaxed), Ordering::Relaxed);
                        Err(error)
                    }
                    claimed => claimed,
                }
            }
            .boxed()
        };
        step("lease.claim.before");
        let claimed = self.lines.own.until_answered(&shared.stop, CLAIMED, ask).await;
        step("lease.claim.after");
        match claimed {
            Ok(answer) => Some(answer),
            Err(Said::Fault(fault)) => {
                shared.health.stalled(&fault, None);
                shared.counters.outage();
                tracing::error!(consumer = %shared.consumer.name, error = %fault, "a message can't be claimed; it comes back");
                Some(locked())
            }
            Err(Said::Abandoned) if unanswered.load(Ordering::Relaxed) => {
                // The worker stops, and would leave a key held that nobody runs: that would count as a death. Behind the lease it is too late.
                let asked = self.lines.own.until_answered(&shared.abandon, CLAIMED, ask);
                let claimed = tokio::time::timeout(shared.consumer.lease.time, asked).await;
                if let Ok(Ok((LeaseAnswer::Granted(granted), left))) = claimed {
                    self.lease(candidate, trail, (granted, left)).release().await;
                }
                None
            }
            Err(Said::Lost | Said::Abandoned) => None,
        }
    }
}

/// What is done, as the log says it.
const CLAIMED: &str = "a message is claimed";

fn locked() -> Answered {
    (LeaseAnswer::Locked, (Instant::now(), SystemTime::now()))
}

fn delivery_of(candidate: Arc<Candidate>) -> Box<Delivery> {
    match Arc::try_unwrap(candidate) {
        Ok(candidate) => candidate.delivery,
        Err(held) => held.delivery.clone(),
    }
}
