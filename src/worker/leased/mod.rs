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

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{JoinError, JoinSet};

use self::runner::Runner;
#[cfg(feature = "testing")]
pub(super) use self::trial::LeasedTrial;
use super::intake::arrivals::{Arrivals, Taken};
use super::shared::Shared;
use crate::amqp::Delivery;
use crate::fault::Fault;
use crate::handler::Run;
use crate::handler::lease::{ErasedLeasedHandler, Lines, MakeTag, Sessions};
use crate::pg::Away;

/// Sessions for the short transactions of a consumer's runs: each is out for a round trip or two.
const SESSIONS: usize = 4;
/// Sessions for renewals.
const RENEWAL_SESSIONS: usize = 2;
/// Groups of claims that are out at the same time, and as many of completions: what comes meanwhile goes together with the next.
const GROUPS: usize = 2;
/// Most messages that wait aside, and as many whose copies are not published: what waits has no place, no session and nothing of the prefetch.
pub(super) const ROOM: usize = 500;
/// While nothing succeeds: how many that have just arrived are tried and fail before the next ones wait for a pause (of a second at most).
const BURST: usize = 256;
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
        let (mut batch, mut taken) = (Vec::new(), Taken::Arrived);
        let is_over = tokio::select! {
            biased;
            () = shared.stop.cancelled() => true,
            Some(ended) = runs.join_next() => {
                pass_on(ended);
                false
            }
            from = runner.arrivals.take(&mut batch) => {
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
            // What is left over comes again with its channel.
            let Some(place) = place else { break };
            let runner = Arc::clone(&runner);
            runs.spawn(async move { runner.take(delivery, taken, place).await });
        }
    }
    while let Some(ended) = runs.join_next().await {
        pass_on(ended);
    }
    runner.lines.close().await;
}

/// The right to be at work on one more message. `None`: told to stop.
async fn place(
    shared: &Shared,
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

/// What all runs of a consumer have in common. `stalled` is told of what keeps a statement from being answered; `has_contact`: see [`Sessions::new`].
fn runner(
    shared: &Arc<Shared>,
    handler: Arc<dyn ErasedLeasedHandler>,
    arriving: mpsc::Receiver<Box<Delivery>>,
    has_contact: bool,
    stalled: impl Fn(&Fault) + Clone + Send + Sync + 'static,
) -> Arc<Runner> {
    let away = Away::default();
    let open = |limit, count| {
        let way = (shared.door.clone(), shared.application(), shared.clock.clone());
        Arc::new(Sessions::new(way, limit, count, (away.clone(), has_contact), stalled.clone()))
    };
    let limit = shared.postgres.client_timeout();
    let lease = shared.consumer.lease.time;
    // A renewal's answer that comes later than the next renewal is of no use.
    let sessions = [open(limit, SESSIONS), open(lease / RENEWALS, RENEWAL_SESSIONS), open(limit, SESSIONS)];
    let keys = Arc::clone(shared);
    let tag = shared.precheck.is_some().then(|| -> Arc<MakeTag> {
        Arc::new(move |epoch, identity, print| keys.keys.now().tags.tag(epoch, identity, print).0)
    });
    let lines = Lines::open(sessions, away, GROUPS, lease, tag);
    let bytes = usize::try_from(shared.consumer.buffer / 4).unwrap_or(usize::MAX);
    let arrivals = Arrivals::new(arriving, BURST, BURST, 1, (ROOM, bytes));
    Arc::new(Runner::new(Arc::clone(shared), handler, lines, GROUPS, arrivals))
}

/// What a run that panicked held stays unacknowledged as long as its channel lives: the worker stops, as for a lane.
fn pass_on(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}
