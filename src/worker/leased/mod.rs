//! A consumer whose handler runs under leases, instead of lanes: each message a run of its own, many at the same time, no transaction
//! while the handler works.

mod at_work;
mod ended;
mod record;
mod run;
mod runner;
#[cfg(feature = "testing")]
mod trial;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinError, JoinSet};

use self::runner::Runner;
#[cfg(feature = "testing")]
pub(super) use self::trial::LeasedTrial;
use super::shared::Shared;
use crate::amqp::Delivery;
use crate::fault::Fault;
use crate::handler::Run;
use crate::handler::lease::{ErasedLeasedHandler, Lines, MakeTag, Sessions};

/// Sessions for the short transactions of a consumer's runs: each is out for a round trip or two.
const SESSIONS: usize = 4;
/// Sessions for renewals.
const RENEWAL_SESSIONS: usize = 2;
/// Groups of claims that are out at the same time, and as many of completions: what comes meanwhile goes together with the next.
const GROUPS: usize = 2;
/// Longest wait for a run to end before the next one begins, while nothing succeeds; and longest pause of a place whose message has failed
/// without a witness.
const BRAKE: Duration = Duration::from_secs(5);
/// Renewals for each lease: two may fail.
const RENEWALS: u32 = 3;

/// The consumer's handler, where it runs under leases.
pub(super) fn handler(run: &Run) -> Option<Arc<dyn ErasedLeasedHandler>> {
    match run {
        Run::Leased(handler) => Some(Arc::clone(handler)),
        Run::Sql(_) | Run::Rust(_) | Run::RustBatch(_) => None,
    }
}

/// Takes messages until told to stop, as many as may run at the same time, and none ahead: a claim that waits burns its lease. Runs that
/// have begun are finished, or given back in time.
pub(super) async fn leased(
    shared: Arc<Shared>,
    handler: Arc<dyn ErasedLeasedHandler>,
    mut arriving: mpsc::Receiver<Box<Delivery>>,
) {
    let places = Arc::new(Semaphore::new(usize::try_from(shared.consumer.lease.concurrency).unwrap_or(1)));
    let told = Arc::clone(&shared);
    let runner = runner(&shared, handler, move |fault| {
        told.health.stalled(fault, None);
        told.counters.outage();
    });
    let beat = shared.liveness.watch(format!("runs under leases for {}", shared.consumer.name));
    let mut runs = JoinSet::new();
    loop {
        beat.idle();
        let place = tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            place = Arc::clone(&places).acquire_owned() => place,
        };
        let Ok(place) = place else { break };
        // While nothing succeeds, they are tried one after the other: what strikes all of them need not strike them at once. A run that
        // lasts keeps the next one waiting for a while only.
        let patience = tokio::time::Instant::now() + BRAKE;
        while shared.progress.is_stalled() && !runs.is_empty() {
            tokio::select! {
                biased;
                () = shared.stop.cancelled() => break,
                () = tokio::time::sleep_until(patience) => break,
                Some(ended) = runs.join_next() => pass_on(ended),
            }
        }
        let delivery = tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            Some(ended) = runs.join_next() => {
                pass_on(ended);
                continue;
            }
            delivery = arriving.recv() => delivery,
        };
        let Some(delivery) = delivery else { break };
        let runner = Arc::clone(&runner);
        runs.spawn(async move {
            let _place = place;
            runner.take(delivery).await;
        });
    }
    while let Some(ended) = runs.join_next().await {
        pass_on(ended);
    }
    runner.lines.close().await;
}

/// What all runs of a consumer have in common. `stalled` is told of what keeps a statement from being answered.
fn runner(
    shared: &Arc<Shared>,
    handler: Arc<dyn ErasedLeasedHandler>,
    stalled: impl Fn(&Fault) + Clone + Send + Sync + 'static,
) -> Arc<Runner> {
    let open = |limit, count| {
        let way = (shared.door.clone(), shared.application(), shared.clock.clone());
        Arc::new(Sessions::new(way, limit, count, stalled.clone()))
    };
    let limit = shared.postgres.client_timeout();
    let lease = shared.consumer.lease.time;
    // A renewal's answer that comes later than the next renewal is of no use.
    let sessions = [open(limit, SESSIONS), open(lease / RENEWALS, RENEWAL_SESSIONS), open(limit, SESSIONS)];
    let keys = Arc::clone(shared);
    let tag = shared.precheck.is_some().then(|| -> Arc<MakeTag> {
        Arc::new(move |epoch, identity, print| keys.keys.now().tags.tag(epoch, identity, print).0)
    });
    Arc::new(Runner::new(Arc::clone(shared), handler, Lines::open(sessions, GROUPS, lease, tag), GROUPS))
}

/// What a run that panicked held stays unacknowledged as long as its channel lives: the worker stops, as for a lane.
fn pass_on(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}
