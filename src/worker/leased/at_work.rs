//! A run that was granted: the handler at work, its renewals, and its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use super::runner::{Decided, Runner};
use crate::failpoint;
use crate::handler::lease::{Finish, Lease, Said};
use crate::handler::{HandlerError, Message};
use crate::worker::candidate::Candidate;

/// How long a handler has after it was told that its run is over.
const GRACE: Duration = Duration::from_secs(2);
/// How long it may take to record that a run was too long.
const RECORDED: Duration = Duration::from_secs(1);
/// Before `worker.shutdown` is over: runs are given back then, so that another worker need not wait for their leases.
const GIVE_BACK: Duration = Duration::from_secs(5);

impl Runner {
    /// Runs the handler, and records what came of it.
    /// `asked`: when the claim left that was granted.
    pub(super) async fn run(
        &self,
        lease: &Lease,
        asked: Instant,
        candidate: &Arc<Candidate>,
    ) -> Option<Decided> {
        let shared = &*self.shared;
        let over = CancellationToken::new();
        // However this ends.
        let _over = over.clone().drop_guard();
        let renewing = tokio::spawn(renew(lease.clone(), over.clone(), shared.consumer.lease.time));
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
        let ended = self.watch(lease, asked, handler).await;
        let is_done = matches!(ended, HandlerEnd::Returned(Ok(_)));
        shared.counters.metrics.handled(began.elapsed(), is_done);
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
            HandlerEnd::Lost => self.lost(lease, candidate, "the key was taken over").await,
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
        asked: Instant,
        mut handler: JoinHandle<Result<Finish, HandlerError>>,
    ) -> HandlerEnd {
        let shared = &*self.shared;
        let stopping = async {
            shared.stop.cancelled().await;
            tokio::time::sleep(shared.shutdown.saturating_sub(GIVE_BACK)).await;
        };
        // In time for its failure to be recorded before somebody else may take the key over: the server counts from the claim.
        let ends = asked + shared.consumer.lease.max_run.saturating_sub(GRACE + RECORDED);
        let why = tokio::select! {
            ended = &mut handler => return match HandlerEnd::of(ended) {
                // That its lease is lost it may have heard before we do: no failure of its own.
                HandlerEnd::Returned(Err(_)) if lease.is_lost() => HandlerEnd::Lost,
                ended => ended,
            },
            () = lease.lost() => HandlerEnd::Lost,
            () = tokio::time::sleep_until(ends.into()) => HandlerEnd::TooLong,
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
    let period = time / super::RENEWALS;
    // Keys that were claimed together lie together. Renewed together, all of a page would be written anew at once, and find no room in it
    // beside what they were: each would move, with all of its indexes.
    let first = period.mul_f64(0.5 + fastrand::f64() / 2.0);
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + first, period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
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
