//! Decisions about messages that can't run now: their key is held, or a process crashed while they ran and they must be alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::consume::BURST_MESSAGES;
use super::runner::{MessageDecision, Runner};
use crate::worker::candidate::Candidate;
use crate::worker::intake::aside::{BatchOrigin, Cause};
use crate::worker::isolation::permit::{NotAlone, Permit};
use crate::worker::undecided::postpone_delivery;
use oncely_amqp::Delivery;
use oncely_config::InFlightPolicy;
use oncely_core::fault::FaultClass;
use oncely_core::identity::Identity;
use oncely_core::outcome::Outcome;
use oncely_core::own_headers;
use oncely_core::reason::{Reason, Rejection};

/// Maximum wait in the worker before a key is claimed again: its holder may be done long before the lease is over.
const MAX_CLAIM_PAUSE: Duration = Duration::from_secs(5);

/// Wait of a suspect behind another one that runs alone, if the try does not count.
const SUSPECT_WAIT: Duration = Duration::from_millis(500);

/// Isolation of a run from the other runs of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunIsolation {
    /// Other runs go on beside it.
    Shared,
    /// No other run goes on beside it: it may be the one that kills the process.
    Alone,
}

/// Result of the wait for the permit to run.
pub(super) enum RunAdmission {
    /// The run may begin, with this permit.
    Granted(Permit),
    /// It must be alone, and others are at work.
    Busy(NotAlone),
    Stopping,
}

impl Runner {
    /// Waits for the permit to run, or until the worker stops.
    pub(super) async fn wait_for_permit(&self, isolation: RunIsolation) -> RunAdmission {
        let shared = &*self.shared;
        let admission = async {
            match isolation {
                RunIsolation::Shared => RunAdmission::Granted(shared.permits.take_for_run().await),
                RunIsolation::Alone => shared
                    .permits
                    .take_among_runs()
                    .await
                    .map_or_else(RunAdmission::Busy, RunAdmission::Granted),
            }
        };
        tokio::select! {
            biased;
            result = admission => result,
            () = shared.stop.cancelled() => RunAdmission::Stopping,
        }
    }

    /// Returns whether a message must run alone. A message that kills its process does so twice among others (once if `max_crashes` is 2 or
    /// less); then alone, where neither it nor another message can be charged by mistake. Its tries to be alone are limited.
    pub(super) fn is_suspect(&self, candidate: &Candidate, crashes: u32) -> bool {
        let last_but_one = self.shared.consumer.retry.max_crashes.saturating_sub(1);
        let among_others = last_but_one.clamp(1, 2);
        crashes >= among_others && !self.shared.progress.has_waited_alone(&candidate.identity)
    }

    /// Decides about a message with a key that another run holds, by `lease.in_flight`.
    pub(super) async fn decide_in_flight(
        &self,
        candidate: &Arc<Candidate>,
        delay: Duration,
    ) -> MessageDecision {
        let consumer = &self.shared.consumer;
        match consumer.lease.in_flight {
            InFlightPolicy::Retry if !consumer.retry.delays.is_empty() => {
                let delay = consumer.retry.rung_for(delay).unwrap_or_default();
                Outcome::Postponed { delay }.into()
            }
            // A redelivered message may be the only copy, of a run that crashed, and so may a copy that Oncely published: it is not
            // rejected.
            InFlightPolicy::Reject if !candidate.delivery.message.redelivered && !is_own_copy(candidate) => {
                let rejection =
                    Rejection::new(Reason::InFlight, "another run holds the key (lease.in_flight)");
                self.give_up(candidate, Outcome::from_rejection(rejection), false).await
            }
            // Without retry queues it would circulate between broker and worker without a pause.
            InFlightPolicy::Retry | InFlightPolicy::Wait | InFlightPolicy::Reject => {
                let (_, since) = self.record_undecided(candidate, FaultClass::Contention);
                MessageDecision::Aside { cause: Cause::Held, wait: delay.min(MAX_CLAIM_PAUSE), since }
            }
        }
    }

    /// Decides that a message that can't be decided now waits aside, longer each time.
    pub(super) fn decide_aside(&self, candidate: &Candidate, class: FaultClass) -> MessageDecision {
        let (wait, since) = self.record_undecided(candidate, class);
        match class {
            FaultClass::Contention => {
                MessageDecision::Aside { cause: Cause::Held, wait: wait.min(MAX_CLAIM_PAUSE), since }
            }
            _ => MessageDecision::Aside { cause: Cause::Environment, wait, since },
        }
    }

    /// Decides about a suspect that can't run alone now: it waits aside. The try counts, unless it is behind another suspect and has waited
    /// for less than a minute; after the last try it runs beside others.
    pub(super) fn decide_suspect(&self, candidate: &Candidate, why: NotAlone) -> MessageDecision {
        let is_behind_another = why == NotAlone::Suspect;
        let progress = &self.shared.progress;
        let (since, counts) =
            progress.record_wait_alone(&candidate.identity, Instant::now(), is_behind_another);
        if counts {
            return self.decide_aside(candidate, FaultClass::Contention);
        }
        // Not `Cause::Suspect`, which never goes to the end of its queue: the crashes of runs under a lease are counted with the key, so a
        // copy is a suspect, too.
        MessageDecision::Aside { cause: Cause::Held, wait: SUSPECT_WAIT, since }
    }

    /// Returns the isolation in which a run begins. A known suspect holds its key only while it is alone: a crash of the process would
    /// count as its own.
    pub(super) fn isolation(&self, candidate: &Candidate) -> RunIsolation {
        match self.shared.progress.has_to_run_alone(&candidate.identity) {
            true => RunIsolation::Alone,
            false => RunIsolation::Shared,
        }
    }

    /// Records that a message stays undecided; returns its next wait, and the time since which it waits.
    fn record_undecided(&self, candidate: &Candidate, class: FaultClass) -> (Duration, Instant) {
        self.shared.progress.postpone(&candidate.identity, Instant::now(), class != FaultClass::Contention)
    }

    /// Decides that a message comes back after a delay, by a retry queue; without retry queues it waits here.
    pub(super) fn postpone(&self, candidate: &Candidate, delay: Duration) -> MessageDecision {
        match self.shared.consumer.retry.rung_for(delay) {
            Some(delay) => Outcome::Postponed { delay }.into(),
            None => {
                let (_, since) = self.record_undecided(candidate, FaultClass::Contention);
                MessageDecision::Aside { cause: Cause::Held, wait: delay, since }
            }
        }
    }

    /// Puts a message aside until its time comes. Messages beyond the limit go to the end of their queue, without an attempt.
    pub(super) async fn put_aside(
        &self,
        origin: BatchOrigin,
        (cause, wait, since): (Cause, Duration, Instant),
        identity: &Identity,
        mut delivery: Box<Delivery>,
    ) {
        let (shared, now) = (&*self.shared, Instant::now());
        let aside = &self.arrivals.aside;
        delivery.park();
        aside.put(now + wait, since, cause, identity.tenant.clone(), delivery);
        if cause == Cause::Environment {
            // A message that has waited is tried alone; of those that arrive, some more.
            let is_first = origin == BatchOrigin::Back
                || self.failed.fetch_add(1, Ordering::Relaxed).is_multiple_of(BURST_MESSAGES);
            if is_first {
                aside.pause(now, origin);
            }
        }
        for delivery in self.arrivals.take_overflow(|delivery| delivery.size()) {
            self.settle(postpone_delivery(shared, delivery)).await;
        }
        #[allow(clippy::cast_precision_loss)] // a few hundred
        shared.counters.metrics.aside.set(aside.len() as f64);
    }
}

/// Returns whether a message is a copy that Oncely has published.
fn is_own_copy(candidate: &Candidate) -> bool {
    candidate.delivery.message.headers.contains_key(own_headers::IDENTITY)
}
