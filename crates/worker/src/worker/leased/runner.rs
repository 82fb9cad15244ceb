//! Common state of a consumer's runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tokio_util::task::TaskTracker;

use crate::worker::candidate::Candidate;
use crate::worker::intake::arrivals::Arrivals;
use crate::worker::intake::aside::Cause;
use crate::worker::shared::ConsumerContext;
use oncely_amqp::Delivery;
use oncely_core::outcome::Outcome;
use oncely_handler::lease::ErasedLeasedHandler;
use oncely_lease::{CallGroup, GroupLimits, GroupedStore, RunTrail, Statement, build_statement};
use oncely_postgres::{self as pg, LeaseClaim, LeaseClaimOutcome, LeaseIdRef};

pub(super) struct Runner {
    pub(super) shared: Arc<ConsumerContext>,
    pub(super) handler: Arc<dyn ErasedLeasedHandler>,
    pub(super) store: Arc<GroupedStore>,
    /// Messages that have arrived, and those that wait aside.
    pub(super) arrivals: Arrivals<Box<Delivery>>,
    /// Messages that have arrived and failed without a decided cause since one succeeded.
    pub(super) failed: AtomicUsize,
    /// Claims of free runs, grouped into one commit.
    pub(super) claims: CallGroup<PendingClaim, TimedAnswer>,
    /// Calls of runs that lost their keys.
    pub(super) calls: TaskTracker,
}

/// Time at which a claim was sent, by both clocks.
pub(super) type SendTime = (Instant, SystemTime);

/// A claim's answer, and when the answered try was sent: a granted run counts from then.
pub(super) type TimedAnswer = (LeaseClaimOutcome, SendTime);

/// Decision about a message.
#[derive(Debug)]
pub(super) enum MessageDecision {
    /// Outcome by which it is settled.
    Outcome(Outcome),
    /// It waits in this process for the time `wait`, and has waited since the time `since`.
    Aside { cause: Cause, wait: Duration, since: tokio::time::Instant },
    /// No outcome: it comes again with its channel.
    Redelivery,
}

impl From<Outcome> for MessageDecision {
    fn from(outcome: Outcome) -> Self {
        Self::Outcome(outcome)
    }
}

/// A message that is claimed.
pub(super) struct PendingClaim {
    pub(super) candidate: Arc<Candidate>,
    /// Unique to this acquisition.
    pub(super) owner: String,
    pub(super) trail: Arc<RunTrail>,
    /// False just after an outage: the key's holder may have been cut off as well, and be alive.
    pub(super) may_take_over: bool,
    /// Whether it was sent, so that it may have been granted without an answer.
    pub(super) has_left: Arc<AtomicBool>,
}

impl Runner {
    /// Starts the runner: claims go to PostgreSQL in up to `groups` concurrent groups.
    pub(super) fn start(
        shared: Arc<ConsumerContext>,
        handler: Arc<dyn ErasedLeasedHandler>,
        store: Arc<GroupedStore>,
        groups: usize,
        arrivals: Arrivals<Box<Delivery>>,
    ) -> Self {
        let consumer = Arc::clone(&shared);
        let claims = CallGroup::start(
            &store.own,
            GroupLimits::new_urgent(groups),
            Arc::new(move |pending_claims: Vec<Arc<PendingClaim>>| {
                let shared = Arc::clone(&consumer);
                build_statement(move |connection| {
                    Box::pin(async move {
                        let claims: Vec<LeaseClaim<'_>> =
                            pending_claims.iter().map(|one| to_lease_claim(&shared, one)).collect();
                        for one in &pending_claims {
                            one.has_left.store(true, Ordering::Relaxed);
                        }
                        // Here, and not at the request: while PostgreSQL is away a claim waits.
                        let left = (Instant::now(), SystemTime::now());
                        let answers = pg::take_leases(connection, &claims).await?;
                        Ok(answers.into_iter().map(|answer| (answer, left)).collect())
                    })
                })
            }),
            Some(Arc::new(|pending_claim, (answer, _)| build_release(pending_claim, answer))),
        );
        Self {
            shared,
            handler,
            store,
            arrivals,
            failed: AtomicUsize::new(0),
            claims,
            calls: TaskTracker::new(),
        }
    }
}

/// Builds the statement that releases a key granted after its caller had gone: its next run need not wait, and no crash is counted. `None`
/// if the key was not granted.
fn build_release(
    pending_claim: Arc<PendingClaim>,
    answer: LeaseClaimOutcome,
) -> Option<Statement<(), sqlx::Error>> {
    let LeaseClaimOutcome::Granted(granted) = answer else { return None };
    Some(build_statement(move |connection| {
        Box::pin(async move {
            let held = LeaseIdRef { identity: &pending_claim.candidate.identity, token: granted.token };
            pg::release_lease(connection, held).await.map(drop)
        })
    }))
}

/// Converts a pending claim to the store's form.
fn to_lease_claim<'a>(shared: &'a ConsumerContext, pending_claim: &'a PendingClaim) -> LeaseClaim<'a> {
    let consumer = &shared.consumer;
    LeaseClaim {
        identity: &pending_claim.candidate.identity,
        fingerprint: pending_claim.candidate.fingerprint.as_ref(),
        owner: &pending_claim.owner,
        time: consumer.lease.time,
        max_run: consumer.lease.max_run,
        on_conflict: consumer.on_conflict,
        max_crashes: consumer.retry.max_crashes,
        queue: &pending_claim.trail.queue,
        worker: &pending_claim.trail.worker,
        trace_id: pending_claim.trail.trace_id.as_deref(),
        may_take_over: pending_claim.may_take_over,
    }
}
