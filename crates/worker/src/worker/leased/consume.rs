//! Takes messages, and starts a run for each.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use super::runner::Runner;
use crate::worker::error::propagate_panic;
use crate::worker::intake::arrivals::Arrivals;
use crate::worker::intake::aside::BatchOrigin;
use crate::worker::settle::unsettled::MAX_LEASED_WAITING;
use crate::worker::shared::ConsumerContext;
use oncely_amqp::Delivery;
use oncely_core::fault::Fault;
use oncely_handler::ConsumerHandler;
use oncely_handler::lease::ErasedLeasedHandler;
use oncely_lease::{GroupedStore, LeaseSessions, TagFn};
use oncely_postgres::LastOutage;

/// Sessions for the short transactions of a consumer's runs: each is in use for a round trip or two.
const SESSIONS_PER_CONSUMER: usize = 4;
/// Sessions for renewals.
const RENEWAL_SESSIONS: usize = 2;
/// Groups of claims in flight at the same time, and as many of completions: later ones go together with the next group.
const GROUPS_IN_FLIGHT: usize = 2;
/// While nothing succeeds: number of new messages that are tried and fail before the next ones wait for a pause (of a second at most).
pub(super) const BURST_MESSAGES: usize = 256;
/// Renewals of each lease: two may fail.
const RENEWALS_PER_LEASE: u32 = 3;

/// Returns the consumer's handler; `None` if it does not run under leases.
pub(in crate::worker) fn leased_handler(run: &ConsumerHandler) -> Option<Arc<dyn ErasedLeasedHandler>> {
    match run {
        ConsumerHandler::Leased(handler) => Some(Arc::clone(handler)),
        ConsumerHandler::Sql(_) | ConsumerHandler::Rust(_) | ConsumerHandler::RustBatch(_) => None,
    }
}

/// Takes messages until the worker stops, as many as may run at the same time, and claims none ahead: a claim that waits uses up its lease.
/// Runs that have begun are finished, or given back five seconds before the end of `worker.shutdown`.
pub(in crate::worker) async fn consume(
    shared: Arc<ConsumerContext>,
    handler: Arc<dyn ErasedLeasedHandler>,
    arriving: mpsc::Receiver<Box<Delivery>>,
) {
    let permits = Arc::new(Semaphore::new(usize::try_from(shared.consumer.lease.concurrency).unwrap_or(1)));
    let context = Arc::clone(&shared);
    let runner = start_runner(&shared, handler, arriving, false, move |fault| {
        context.health.record_stall(fault, None);
        context.counters.count_outage();
    });
    let beat = shared.liveness.watch(format!("runs under leases for {}", shared.consumer.name));
    let mut runs = JoinSet::new();
    loop {
        beat.set_idle();
        let Some(permit) = acquire_permit(&shared, &permits, &mut runs).await else { break };
        let (mut batch, mut origin) = (Vec::new(), BatchOrigin::Arrived);
        let is_over = tokio::select! {
            biased;
            () = shared.stop.cancelled() => true,
            Some(result) = runs.join_next() => {
                propagate_panic(result);
                false
            }
            (from, _) = runner.arrivals.take(&mut batch) => {
                origin = from;
                batch.is_empty()
            }
        };
        if is_over {
            break;
        }
        let mut free = Some(permit);
        for delivery in batch {
            let permit = match free.take() {
                Some(permit) => Some(permit),
                None => acquire_permit(&shared, &permits, &mut runs).await,
            };
            // The remaining deliveries come again with their channel.
            let Some(permit) = permit else { break };
            let runner = Arc::clone(&runner);
            runs.spawn(async move { runner.process(delivery, origin, permit).await });
        }
    }
    while let Some(result) = runs.join_next().await {
        propagate_panic(result);
    }
    runner.calls.close();
    runner.calls.wait().await;
    runner.store.close().await;
}

/// Waits for the permit to process one more message; takes ended runs meanwhile. Returns `None` if the worker stops.
async fn acquire_permit(
    shared: &ConsumerContext,
    permits: &Arc<Semaphore>,
    runs: &mut JoinSet<()>,
) -> Option<OwnedSemaphorePermit> {
    loop {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return None,
            permit = Arc::clone(permits).acquire_owned() => return permit.ok(),
            Some(result) = runs.join_next() => propagate_panic(result),
        }
    }
}

/// Starts the common state of a consumer's runs. `record_stall` gets the faults that keep a statement from being answered; `has_contact`:
/// see [`LeaseSessions::new`].
pub(super) fn start_runner(
    shared: &Arc<ConsumerContext>,
    handler: Arc<dyn ErasedLeasedHandler>,
    arriving: mpsc::Receiver<Box<Delivery>>,
    has_contact: bool,
    record_stall: impl Fn(&Fault) + Clone + Send + Sync + 'static,
) -> Arc<Runner> {
    let last_outage = LastOutage::default();
    let open = |limit, count| {
        let session_source = (shared.factory.clone(), shared.application(), shared.clock.clone());
        Arc::new(LeaseSessions::new(
            session_source,
            limit,
            count,
            (last_outage.clone(), has_contact),
            record_stall.clone(),
        ))
    };
    let limit = shared.postgres.client_timeout();
    let lease = shared.consumer.lease.time;
    // A renewal's answer that comes later than the next renewal is of no use.
    let sessions = [
        open(limit, SESSIONS_PER_CONSUMER),
        open(lease / RENEWALS_PER_LEASE, RENEWAL_SESSIONS),
        open(limit, SESSIONS_PER_CONSUMER),
    ];
    let keys = Arc::clone(shared);
    let tag = shared.precheck.is_some().then(|| -> Arc<TagFn> {
        Arc::new(move |epoch, identity, print| keys.keys.current().tags.tag(epoch, identity, print).0)
    });
    let store = Arc::new(GroupedStore::open(sessions, last_outage, GROUPS_IN_FLIGHT, lease, tag));
    let bytes = usize::try_from(shared.consumer.buffer / 2).unwrap_or(usize::MAX);
    let arrivals = Arrivals::new(arriving, BURST_MESSAGES, BURST_MESSAGES, 1, (MAX_LEASED_WAITING, bytes));
    Arc::new(Runner::start(Arc::clone(shared), handler, store, GROUPS_IN_FLIGHT, arrivals))
}
