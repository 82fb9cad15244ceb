//! A consumer whose handler runs under leases, instead of lanes: each message a run of its own, many at the same time, no transaction
//! while the handler works.

mod record;
mod run;
#[cfg(feature = "testing")]
mod trial;

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinError, JoinSet};

use self::run::Runner;
#[cfg(feature = "testing")]
pub(super) use self::trial::LeasedTrial;
use super::shared::Shared;
use crate::amqp::Delivery;
use crate::fault::Fault;
use crate::handler::Run;
use crate::handler::lease::{ErasedLeasedHandler, Sessions};

/// Sessions for the short transactions of a consumer's runs: each is out for a round trip or two.
const SESSIONS: usize = 4;
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
    let (runner, sessions) = runner(&shared, handler, move |fault| {
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
    for sessions in sessions {
        sessions.close().await;
    }
}

/// What all runs of a consumer have in common, and its sessions. `stalled` is told of what keeps a statement from being answered.
fn runner(
    shared: &Arc<Shared>,
    handler: Arc<dyn ErasedLeasedHandler>,
    stalled: impl Fn(&Fault) + Clone + Send + Sync + 'static,
) -> (Arc<Runner>, [Arc<Sessions>; 2]) {
    let open = |limit, count| {
        let (door, name) = (shared.door.clone(), shared.application());
        Arc::new(Sessions::new(door, name, limit, count, stalled.clone()))
    };
    let sessions = open(shared.postgres.client_timeout(), SESSIONS);
    // An answer that comes later than the next renewal is of no use.
    let renewals = open(shared.consumer.lease.time / RENEWALS, 1);
    let both = [sessions, renewals];
    (Arc::new(Runner::new(Arc::clone(shared), handler, both.clone())), both)
}

/// What a run that panicked held stays unacknowledged as long as its channel lives: the worker stops, as for a lane.
fn pass_on(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}
