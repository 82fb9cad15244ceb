//! Starts the tasks that work through a consumer's deliveries at one server of PostgreSQL.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::batch::prepare::read_tenant;
use super::intake::arrivals::Arrivals;
use super::lane::Lane;
use super::leased;
use super::shared::ConsumerContext;
use oncely_amqp::Delivery;

/// Starts the lanes, or the runs under leases, of a consumer. `capacity`: number of deliveries that the receiver may hold. The tasks end
/// when the worker stops, and finish the work that has begun.
pub(super) fn start_lanes(
    shared: &Arc<ConsumerContext>,
    receiver: mpsc::Receiver<Box<Delivery>>,
    capacity: usize,
    lanes: &mut JoinSet<()>,
) {
    if let Some(handler) = leased::leased_handler(&shared.handler) {
        lanes.spawn(leased::consume(Arc::clone(shared), handler, receiver));
        return;
    }
    let arrivals = Arc::new(build_arrivals(shared, receiver, capacity));
    for _ in 0..shared.consumer.lanes {
        lanes.spawn(Lane::register(Arc::clone(shared), Arc::clone(&arrivals)).run());
    }
}

/// Builds the buffer between a consumer's subscriptions and its lanes.
fn build_arrivals(
    shared: &Arc<ConsumerContext>,
    receiver: mpsc::Receiver<Box<Delivery>>,
    capacity: usize,
) -> Arrivals<Box<Delivery>> {
    let consumer = &shared.consumer;
    let max_messages = usize::try_from(consumer.batch).unwrap_or(usize::MAX);
    let lanes = usize::try_from(consumer.lanes).unwrap_or(usize::MAX);
    // Half of the bytes that deliveries may hold; a quarter may be unsettled.
    let bytes = usize::try_from(consumer.buffer / 2).unwrap_or(usize::MAX);
    let room = usize::from(consumer.prefetch / 2);
    let arrivals = Arrivals::new(receiver, max_messages, capacity, lanes, (room, bytes))
        .with_pace(shared.pace.clone())
        .with_share(shared.batch_share.clone());
    if !consumer.fair {
        return arrivals;
    }
    let shared = Arc::clone(shared);
    arrivals.with_turns(capacity, Box::new(move |delivery| read_tenant(&shared, delivery)), |delivery| {
        delivery.size()
    })
}
