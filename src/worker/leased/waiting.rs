//! Messages that can't run now: their key is held, or a process died while they ran and they must be alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::BURST;
use super::runner::{Decided, Runner};
use crate::amqp::Delivery;
use crate::config::InFlight;
use crate::fault::FaultClass;
use crate::identity::Identity;
use crate::outcome::Outcome;
use crate::reason::{Reason, Rejection};
use crate::worker::candidate::Candidate;
use crate::worker::gone::postponed;
use crate::worker::intake::arrivals::Taken;
use crate::worker::intake::aside::Cause;
use crate::worker::isolation::permit::Permit;

/// How often a message waits to be the only one at work in its process before it runs beside others, as in lanes.
const MOST_TRIES: u32 = 8;

/// Longest wait in the worker before a key is claimed again: whoever holds it may be done long before its lease is over.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Beside whom a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// All others of the process.
    Shared,
    /// Nobody: it may be what kills the process.
    Alone,
}

impl Runner {
    /// The right to run now. The inner `None`: others are at work, and it must be alone; the outer one: the worker stops.
    pub(super) async fn enter(&self, room: Room) -> Option<Option<Permit>> {
        let shared = &*self.shared;
        let entering = async {
            match room {
                Room::Shared => Some(shared.permits.take_for_run().await),
                Room::Alone => shared.permits.take_among_runs().await,
            }
        };
        tokio::select! {
            biased;
            permit = entering => Some(permit),
            () = shared.stop.cancelled() => None,
        }
    }

    /// Must it run alone? A message that kills its process dies once among strangers and once more; then it can blame nobody, and nobody can be
    /// blamed for it. Others are not waited for without end.
    pub(super) fn is_suspect(&self, candidate: &Candidate, crashes: u32) -> bool {
        let last_but_one = self.shared.consumer.retry.max_crashes.saturating_sub(1);
        let among_others = last_but_one.clamp(1, 2);
        crashes >= among_others && self.shared.progress.tries(&candidate.identity) < MOST_TRIES
    }

    /// Another run holds the key. `None`: it comes again with its channel.
    pub(super) async fn in_flight(&self, candidate: &Arc<Candidate>, delay: Duration) -> Option<Decided> {
        let consumer = &self.shared.consumer;
        match consumer.lease.in_flight {
            InFlight::Retry if !consumer.retry.delays.is_empty() => {
                let delay = consumer.retry.rung_for(delay).unwrap_or_default();
                Some(Outcome::Postponed { delay }.into())
            }
            // What comes again may be the only copy, of a run that died: it is not rejected.
            InFlight::Reject if !candidate.delivery.message.redelivered => {
                let rejection =
                    Rejection::new(Reason::InFlight, "another run holds the key (lease.in_flight)");
                self.given_up(candidate, Outcome::rejected(rejection), false).await
            }
            // Without retry queues it would go round between broker and worker without a pause.
            InFlight::Retry | InFlight::Wait | InFlight::Reject => {
                let (_, since) = self.undecided_since(candidate, FaultClass::Contention);
                Some(Decided::Aside(Cause::Held, delay.min(LOOK_AGAIN), since))
            }
        }
    }

    /// It can't be decided now, and waits aside, longer each time.
    pub(super) fn waits(&self, candidate: &Candidate, class: FaultClass) -> Decided {
        let (wait, since) = self.undecided_since(candidate, class);
        match class {
            FaultClass::Contention => Decided::Aside(Cause::Held, wait.min(LOOK_AGAIN), since),
            _ => Decided::Aside(Cause::Environment, wait, since),
        }
    }

    fn undecided_since(&self, candidate: &Candidate, class: FaultClass) -> (Duration, Instant) {
        self.shared.progress.undecided(&candidate.identity, Instant::now(), class != FaultClass::Contention)
    }

    /// It comes back after a while; without retry queues it waits here.
    pub(super) fn postpone(&self, candidate: &Candidate, delay: Duration) -> Decided {
        match self.shared.consumer.retry.rung_for(delay) {
            Some(delay) => Outcome::Postponed { delay }.into(),
            None => {
                let (_, since) = self.undecided_since(candidate, FaultClass::Contention);
                Decided::Aside(Cause::Held, delay, since)
            }
        }
    }

    /// Leaves a message aside until its time comes. What is more than may wait goes to the end of its queue, without an attempt.
    pub(super) async fn put_aside(
        &self,
        taken: Taken,
        (cause, wait, since): (Cause, Duration, Instant),
        identity: &Identity,
        mut delivery: Box<Delivery>,
    ) {
        let (shared, now) = (&*self.shared, Instant::now());
        let aside = &self.arrivals.aside;
        delivery.park();
        aside.put(now + wait, since, cause, identity.tenant.clone(), delivery);
        if cause == Cause::Environment {
            // One that has waited is tried alone; of those that arrive some more.
            let is_first =
                taken == Taken::Back || self.failed.fetch_add(1, Ordering::Relaxed).is_multiple_of(BURST);
            if is_first {
                aside.pause(now);
            }
        }
        for delivery in self.arrivals.overflow(|delivery| delivery.message.body.len()) {
            let (delivery, known) = postponed(shared, delivery);
            self.settle((delivery, known, Outcome::Postponed { delay: Duration::ZERO })).await;
        }
        #[allow(clippy::cast_precision_loss)] // a few hundred
        shared.counters.metrics.aside.set(aside.len() as f64);
    }
}
