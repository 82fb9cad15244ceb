//! Takes messages, and starts a run for each.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{JoinError, JoinSet};

use super::runner::Runner;
use crate::worker::intake::arrivals::Arrivals;
use crate::worker::intake::aside::BatchOrigin;
use crate::worker::settle::unsettled::LEASED_ROOM;
use crate::worker::shared::ConsumerContext;
use oncely_amqp::Delivery;
use oncely_core::fault::Fault;
use oncely_handler::ConsumerHandler;
use oncely_handler::lease::ErasedLeasedHandler;
use oncely_lease::{GroupedStore, LeaseSessions, TagFn};
use oncely_postgres::LastOutage;

/// Sessions for the short transactions of a consumer's runs: each is in use for a round trip or two.
const SESSIONS: usize = 4;
/// Sessions for renewals.
const RENEWAL_SESSIONS: usize = 2;
/// Groups of claims in flight at the same time, and as many of completions: later ones go together with the next group.
const GROUPS: usize = 2;
/// While nothing succeeds: number of new messages that are tried and fail before the next ones wait for a pause (of a second at most).
pub(super) const BURST: usize = 256;
/// Renewals of each lease: two may fail.
const RENEWALS: u32 = 3;

/// Returns the consumer's handler if it runs under leases.
pub(in crate::worker) fn handler(run: &ConsumerHandler) -> Option<Arc<dyn ErasedLeasedHandler>> {
    match run {
        ConsumerHandler::Leased(handler) => Some(Arc::clone(handler)),
        ConsumerHandler::Sql(_) | ConsumerHandler::Rust(_) | ConsumerHandler::RustBatch(_) => None,
    }
}

/// Takes messages until the worker stops, as many as may run at the same time, and none ahead: a claim that waits uses up its lease. Runs
/// that have begun are finished, or given back in time.
pub(in crate::worker) async fn consume(
    shared: Arc<ConsumerContext>,
    handler: Arc<dyn ErasedLeasedHandler>,
    arriving: mpsc::Receiver<Box<Delivery>>,
) {
    let places = Arc::new(Semaphore::new(usize::try_from(shared.consumer.lease.concurrency).unwrap_or(1)));
    let told = Arc::clone(&shared);
    let runner = runner(&shared, handler, arriving, false, move |fault| {
        told.health.stalled(fault, None);
        told.counters.outage();
    });
    let beat = shared.liveness.watch(format!("runs under leases for {}", shared.consumer.name));
    let mut runs = JoinSet::new();
    loop {
        beat.idle();
        let Some(place) = place(&shared, &places, &mut runs).await else { break };
        let (mut batch, mut taken) = (Vec::new(), BatchOrigin::Arrived);
        let is_over = tokio::select! {
            biased;
            () = shared.stop.cancelled() => true,
            Some(ended) = runs.join_next() => {
                pass_on(ended);
                false
            }
            (from, _) = runner.arrivals.take(&mut batch) => {
                taken = from;
                batch.is_empty()
            }
        };
        if is_over {
            break;
        }
        let mut free = Some(place);
        for delivery in batch {
            let place = match free.take() {
                Some(place) => Some(place),
                None => self::place(&shared, &places, &mut runs).await,
            };
            // The remaining deliveries come again with their channel.
            let Some(place) = place else { break };
            let runner = Arc::clone(&runner);
            runs.spawn(async move { runner.take(delivery, taken, place).await });
        }
    }
    while let Some(ended) = runs.join_next().await {
        pass_on(ended);
    }
    runner.calls.close();
    runner.calls.wait().await;
    runner.store.close().await;
}

/// Waits for the right to process one more message. Returns `None` if the worker stops.
async fn place(
    shared: &ConsumerContext,
    places: &Arc<Semaphore>,
    runs: &mut JoinSet<()>,
) -> Option<OwnedSemaphorePermit> {
    loop {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return None,
            place = Arc::clone(places).acquire_owned() => return place.ok(),
            Some(ended) = runs.join_next() => pass_on(ended),
        }
    }
}

/// Builds the common state of a consumer's runs. `stalled` gets the faults that keep a statement from being answered; `has_contact`: see
/// [`LeaseSessions::new`].
pub(super) fn runner(
    shared: &Arc<ConsumerContext>,
    handler: Arc<dyn ErasedLeasedHandler>,
    arriving: mpsc::Receiver<Box<Delivery>>,
    has_contact: bool,
    stalled: impl Fn(&Fault) + Clone + Send + Sync + 'static,
) -> Arc<Runner> {
    let away = LastOutage::default();
    let open = |limit, count| {
        let way = (shared.factory.clone(), shared.application(), shared.clock.clone());
        Arc::new(LeaseSessions::new(way, limit, count, (away.clone(), has_contact), stalled.clone()))
    };
    let limit = shared.postgres.client_timeout();
    let lease = shared.consumer.lease.time;
    // A renewal's answer that comes later than the next renewal is of no use.
    let sessions = [open(limit, SESSIONS), open(lease / RENEWALS, RENEWAL_SESSIONS), open(limit, SESSIONS)];
    let keys = Arc::clone(shared);
    let tag = shared.precheck.is_some().then(|| -> Arc<TagFn> {
        Arc::new(move |epoch, identity, print| keys.keys.now().tags.tag(epoch, identity, print).0)
    });
    let store = Arc::new(GroupedStore::open(sessions, away, GROUPS, lease, tag));
    let bytes = usize::try_from(shared.consumer.buffer / 2).unwrap_or(usize::MAX);
    let arrivals = Arrivals::new(arriving, BURST, BURST, 1, (LEASED_ROOM, bytes));
    Arc::new(Runner::new(Arc::clone(shared), handler, store, GROUPS, arrivals))
}

/// Propagates a run's panic: its message stays unacknowledged as long as its channel lives, so the worker stops, as for a lane.
fn pass_on(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}
