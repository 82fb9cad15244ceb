//! What all runs of a consumer have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::amqp::Delivery;
use crate::handler::lease::{ErasedLeasedHandler, Group, Grouping, Lines, Statement, Trail, statement};
use crate::outcome::Outcome;
use crate::pg::{self, Held, LeaseAnswer, LeaseClaim};
use crate::worker::candidate::Candidate;
use crate::worker::intake::arrivals::Arrivals;
use crate::worker::intake::aside::Cause;
use crate::worker::shared::Shared;

pub(super) struct Runner {
    pub(super) shared: Arc<Shared>,
    pub(super) handler: Arc<dyn ErasedLeasedHandler>,
    pub(super) lines: Lines,
    /// What has arrived, and what waits aside.
    pub(super) arrivals: Arrivals<Box<Delivery>>,
    /// Messages that have arrived and failed since one has succeeded, and nobody answers for.
    pub(super) failed: AtomicUsize,
    /// One commit claims for all places that have become free.
    pub(super) claims: Group<Claiming, Answered>,
}

/// When a claim left, by both clocks.
pub(super) type Left = (Instant, SystemTime);

/// What became of a claim, and when the try left that was answered so: a run that was granted counts from then.
pub(super) type Answered = (LeaseAnswer, Left);

/// What became of a message. Where nothing did, it comes again with its channel.
#[derive(Debug)]
pub(super) enum Decided {
    /// What the broker is told.
    Told(Outcome),
    /// It waits here, for so long, and has done so since then.
    Aside(Cause, Duration, tokio::time::Instant),
}

impl From<Outcome> for Decided {
    fn from(outcome: Outcome) -> Self {
        Self::Told(outcome)
    }
}

/// A message that is claimed.
pub(super) struct Claiming {
    pub(super) candidate: Arc<Candidate>,
    /// Of this very acquisition.
    pub(super) owner: String,
    pub(super) trail: Trail,
    /// Not just after an outage: whoever holds the key may have been cut off as well, and lives.
    pub(super) may_take_over: bool,
    /// It was sent, so that it may have been granted though no answer comes.
    pub(super) has_left: Arc<AtomicBool>,
}

impl Runner {
    /// `groups`: of claims, at the same time.
    pub(super) fn new(
        shared: Arc<Shared>,
        handler: Arc<dyn ErasedLeasedHandler>,
        lines: Lines,
        groups: usize,
        arrivals: Arrivals<Box<Delivery>>,
    ) -> Self {
        let consumer = Arc::clone(&shared);
        let claims = Group::start(
            &lines.own,
            Grouping::at_once(groups),
            Arc::new(move |claiming: Vec<Arc<Claiming>>| {
                let shared = Arc::clone(&consumer);
                statement(move |connection| {
                    Box::pin(async move {
                        let claims: Vec<LeaseClaim<'_>> =
                            claiming.iter().map(|one| claim(&shared, one)).collect();
                        for one in &claiming {
                            one.has_left.store(true, Ordering::Relaxed);
                        }
                        // Here, and not where it was asked for: while PostgreSQL is away a claim waits.
                        let left = (Instant::now(), SystemTime::now());
                        let answers = pg::take_leases(connection, &claims).await?;
                        Ok(answers.into_iter().map(|answer| (answer, left)).collect())
                    })
                })
            }),
            Some(Arc::new(|claiming, (answer, _)| given_back(claiming, answer))),
        );
        Self { shared, handler, lines, arrivals, failed: AtomicUsize::new(0), claims }
    }
}

/// A key that was granted to nobody: its next run need not wait, and no death is counted.
fn given_back(claiming: Arc<Claiming>, answer: LeaseAnswer) -> Option<Statement<(), sqlx::Error>> {
    let LeaseAnswer::Granted(granted) = answer else { return None };
    Some(statement(move |connection| {
        Box::pin(async move {
            let held = Held { identity: &claiming.candidate.identity, token: granted.token };
            pg::release_lease(connection, held).await.map(drop)
        })
    }))
}

fn claim<'a>(shared: &'a Shared, claiming: &'a Claiming) -> LeaseClaim<'a> {
    let consumer = &shared.consumer;
    LeaseClaim {
        identity: &claiming.candidate.identity,
        fingerprint: claiming.candidate.fingerprint.as_ref(),
        owner: &claiming.owner,
        time: consumer.lease.time,
        max_run: consumer.lease.max_run,
        on_conflict: consumer.on_conflict,
        max_crashes: consumer.retry.max_crashes,
        queue: &claiming.trail.queue,
        worker: &claiming.trail.worker,
        trace_id: claiming.trail.trace_id.as_deref(),
        may_take_over: claiming.may_take_over,
    }
}
