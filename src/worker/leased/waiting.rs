//! Messages that can't run now: their key is held, or a process died while they ran and they must be alone.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::runner::{Decided, Runner};
use crate::config::InFlight;
use crate::fault::FaultClass;
use crate::outcome::Outcome;
use crate::reason::{Reason, Rejection};
use crate::worker::candidate::Candidate;
use crate::worker::isolation::permit::{Isolation, Permit};

/// How often a message waits to be the only one at work in its process before it runs beside others, as in lanes.
const MOST_TRIES: u32 = 8;

/// Longest wait for the other runs of the consumer, which keeps those that come behind waiting, too.
const LONGEST_WAIT_ALONE: Duration = Duration::from_secs(10);

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
                Room::Shared => shared.permits.take(Isolation::None).await,
                Room::Alone => shared.permits.take_among_runs(LONGEST_WAIT_ALONE).await,
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

    /// It must be alone, and others are at work for longer than it waits for them.
    pub(super) async fn put_aside(&self, candidate: &Candidate) -> Decided {
        let (progress, now) = (&self.shared.progress, Instant::now());
        let (pause, _) = progress.undecided(&candidate.identity, now, FaultClass::Contention);
        let decided = self.postpone(pause).await;
        self.leaves(candidate, &decided);
        decided
    }

    /// Another run holds the key. The inner `None`: claimed again; the outer one: it comes again with its channel.
    pub(super) async fn in_flight(&self, candidate: &Arc<Candidate>, delay: Duration) -> Option<Decided> {
        let consumer = &self.shared.consumer;
        match consumer.lease.in_flight {
            InFlight::Retry if !consumer.retry.delays.is_empty() => {
                Some(Some(Outcome::Postponed { delay: consumer.retry.rung_for(delay).unwrap_or_default() }))
            }
            // What comes again may be the only copy, of a run that died: it is not rejected.
            InFlight::Reject if !candidate.delivery.message.redelivered => {
                let rejection =
                    Rejection::new(Reason::InFlight, "another run holds the key (lease.in_flight)");
                self.given_up(candidate, Outcome::rejected(rejection), false).await.map(Some)
            }
            // Without retry queues it would go round between broker and worker without a pause.
            InFlight::Retry | InFlight::Wait | InFlight::Reject => {
                let channel = &candidate.delivery.channel;
                self.pause(delay.min(LOOK_AGAIN)).await.then_some(())?;
                (!channel.is_over()).then_some(None)
            }
        }
    }

    /// It is remembered as undecided until it may be back.
    pub(super) fn leaves(&self, candidate: &Candidate, decided: &Decided) {
        let away = match decided {
            Some(Outcome::Postponed { delay }) => *delay,
            _ => Duration::ZERO,
        };
        self.shared.progress.leaves(&candidate.identity, Instant::now() + away);
    }

    /// It comes back after a while; without retry queues it waits here first.
    pub(super) async fn postpone(&self, delay: Duration) -> Decided {
        match self.shared.consumer.retry.rung_for(delay) {
            Some(delay) => Some(Outcome::Postponed { delay }),
            None => {
                self.pause(delay).await;
                Some(Outcome::Postponed { delay: Duration::ZERO })
            }
        }
    }

    /// False where the worker stops meanwhile, or its consumer is paused: nobody waits for what waits here.
    pub(super) async fn pause(&self, time: Duration) -> bool {
        let mut gate = self.shared.gate.watch();
        if !self.shared.gate.is_open() {
            return false;
        }
        tokio::select! {
            biased;
            () = self.shared.stop.cancelled() => false,
            () = gate.changed() => self.shared.gate.is_open(),
            () = tokio::time::sleep(time) => true,
        }
    }
}
