//! Sends a consumer's deliveries to the lanes of the node that keeps their tenant.
//!
//! A wrong node is never wrong, only slower: it forwards the statements. So an owner that is not known (yet), or was known some time ago,
//! keeps no message waiting for long.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::mpsc::error::{SendError, TrySendError};
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::task::{JoinError, JoinSet};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::batch::prepare::read_tenant;
use super::error::propagate_panic;
use super::nodes::{ClusterNode, ClusterNodes};
use super::owners::Owners;
use super::settle::settle;
use super::shared::ConsumerContext;
use super::start_lanes::start_lanes;
use super::undecided::{abandon_deliveries, postpone_delivery};
use oncely_amqp::Delivery;
use oncely_core::identity::IdentityPart;
use oncely_core::outcome::Outcome;

/// Number of deliveries that are sent on at a time.
const MAX_AT_ONCE: usize = 500;
/// Time after which a message comes again if its node is away and its like use up their share of the prefetch.
const AWAY_DELAY: Duration = Duration::from_secs(5);

/// Interval at which it is checked whether a node with waiting messages is away.
const AWAY_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Lanes at one node.
struct NodeLanes {
    node: Arc<ClusterNode>,
    sender: mpsc::Sender<Box<Delivery>>,
    /// Maximum number of messages in a batch of theirs.
    batch_share: Arc<AtomicUsize>,
    /// Deliveries that find no room in the channel to the lanes.
    waiting: VecDeque<Box<Delivery>>,
    /// Whether the wait for room is among [`Router::room`].
    is_waiting: bool,
}

/// Room in the channel to the lanes at a node, by its number.
type Room = BoxFuture<'static, (i32, Result<OwnedPermit<Box<Delivery>>, SendError<()>>)>;

/// A consumer's lanes at all nodes.
struct Router {
    shared: Arc<ConsumerContext>,
    nodes: Arc<ClusterNodes>,
    owners: Owners,
    /// Lanes at the configured server, which forwards.
    any: mpsc::Sender<Box<Delivery>>,
    by_node: HashMap<i32, NodeLanes>,
    room: FuturesUnordered<Room>,
    lanes: JoinSet<()>,
    capacity: usize,
    /// Deliveries of tenants with an owner that is not known yet, in their order.
    unknown: Vec<(IdentityPart, Box<Delivery>)>,
    /// Deliveries that find no room.
    overflow: Vec<Box<Delivery>>,
}

/// Sends deliveries on until the worker stops; then waits for the lanes. `capacity`: as many as the broker sends ahead.
pub(super) async fn route(
    shared: Arc<ConsumerContext>,
    nodes: Arc<ClusterNodes>,
    mut receiver: mpsc::Receiver<Box<Delivery>>,
    capacity: usize,
) {
    let mut lanes = JoinSet::new();
    let (any, forwarded) = mpsc::channel(capacity.max(1));
    start_lanes(&shared, forwarded, capacity, &mut lanes);
    let ttl = shared.postgres.citus.as_ref().map_or(Duration::ZERO, |citus| citus.placement_ttl);
    let owners = Owners::new(Arc::clone(&nodes), ttl, shared.application());
    let stop = shared.stop.clone();
    let mut router = Router {
        shared,
        nodes,
        owners,
        any,
        by_node: HashMap::new(),
        room: FuturesUnordered::new(),
        lanes,
        capacity,
        unknown: Vec::new(),
        overflow: Vec::new(),
    };
    let mut batch = Vec::new();
    let mut ended = None;
    let mut away_checks = tokio::time::interval(AWAY_CHECK_INTERVAL);
    away_checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(result) = router.lanes.join_next() => {
                ended = Some(result);
                break;
            }
            asked = router.owners.answered() => router.send_known(&asked),
            Some((node, room)) = router.room.next() => router.fill(node, room),
            _ = away_checks.tick() => router.give_back(),
            number = receiver.recv_many(&mut batch, MAX_AT_ONCE), if router.unknown.len() < capacity.max(1) => {
                if number == 0 {
                    break;
                }
                router.send(batch.drain(..));
            }
        }
        router.ask();
        router.settle_overflow().await;
    }
    if let Some(result) = ended {
        router.finish(&stop, result).await;
    }
    while let Some(result) = router.lanes.join_next().await {
        propagate_panic(result);
    }
}

impl Router {
    /// Stops the worker after a lane that ended by itself: its messages stay unacknowledged as long as their channel lives. Panics as the
    /// lane did.
    async fn finish(&mut self, stop: &CancellationToken, result: Result<(), JoinError>) {
        if !stop.is_cancelled() {
            tracing::error!(consumer = %self.shared.consumer.name, "a lane at a node ended unexpectedly; stopping the worker");
            stop.cancel();
        }
        while self.lanes.join_next().await.is_some() {}
        propagate_panic(result);
    }

    /// Sends deliveries to the lanes of their owners; keeps those of unknown owners.
    fn send(&mut self, deliveries: impl Iterator<Item = Box<Delivery>>) {
        for delivery in deliveries {
            match read_tenant(&self.shared, &delivery) {
                None => self.send_to_any(delivery),
                Some(tenant) => match self.owners.find(&tenant) {
                    Some(node) => self.send_to(node, delivery),
                    None => self.unknown.push((tenant, delivery)),
                },
            }
        }
    }

    /// Sends deliveries of tenants that were asked for: to their owners, or to the configured server if these are still unknown.
    fn send_known(&mut self, asked: &[IdentityPart]) {
        let was_asked: HashSet<&IdentityPart> = asked.iter().collect();
        for (tenant, delivery) in std::mem::take(&mut self.unknown) {
            match self.owners.find(&tenant) {
                Some(node) => self.send_to(node, delivery),
                None if was_asked.contains(&tenant) => self.send_to_any(delivery),
                None => self.unknown.push((tenant, delivery)),
            }
        }
    }

    /// Asks for the owners of tenants. While no server answers, deliveries of unknown ones go to the configured server.
    fn ask(&mut self) {
        if self.owners.may_ask() {
            self.owners.ask(self.unknown.iter().map(|(tenant, _)| tenant.clone()));
        } else if self.owners.is_refused() {
            for (_, delivery) in std::mem::take(&mut self.unknown) {
                self.send_to_any(delivery);
            }
        }
    }

    fn send_to_any(&mut self, delivery: Box<Delivery>) {
        self.shared.counters.count_route(false);
        if let Err(TrySendError::Full(delivery) | TrySendError::Closed(delivery)) =
            self.any.try_send(delivery)
        {
            self.overflow.push(delivery);
        }
    }

    /// Sends a delivery to the lanes at a node, which are started with the first one.
    fn send_to(&mut self, number: i32, delivery: Box<Delivery>) {
        if !self.by_node.contains_key(&number) && !self.start_at(number) {
            return self.send_to_any(delivery);
        }
        let Some(lanes) = self.by_node.get_mut(&number) else { return self.send_to_any(delivery) };
        self.shared.counters.count_route(true);
        if !lanes.waiting.is_empty() {
            return lanes.waiting.push_back(delivery);
        }
        match lanes.sender.try_send(delivery) {
            Ok(()) => {}
            Err(TrySendError::Full(delivery) | TrySendError::Closed(delivery)) => {
                lanes.waiting.push_back(delivery);
                self.wait_for_room(number);
            }
        }
    }

    /// Starts the lanes at a node; returns false if the node is unknown. The nodes share the prefetch: batches of a node's lanes hold up
    /// to half of it divided by the nodes, and the channel to them up to a quarter. Others wait here, from where they can be given back.
    fn start_at(&mut self, number: i32) -> bool {
        let Some(node) = self.nodes.get(number) else { return false };
        let nodes = self.by_node.len() + 1;
        let room = (self.capacity / (4 * nodes)).max(1);
        let (sender, receiver) = mpsc::channel(room);
        let batch_share = Arc::new(AtomicUsize::new(1));
        let mode = self.shared.consumer.precheck.or(self.nodes.mode);
        let at_node = self.shared.at_node(&node, mode, Arc::clone(&batch_share));
        start_lanes(&at_node, receiver, self.capacity, &mut self.lanes);
        let lanes = NodeLanes { node, sender, batch_share, waiting: VecDeque::new(), is_waiting: false };
        self.by_node.insert(number, lanes);
        let lanes_of_all = usize::try_from(self.shared.consumer.lanes).unwrap_or(1).max(1) * nodes;
        let share = (self.capacity / (2 * lanes_of_all)).max(1);
        self.by_node.values().for_each(|lanes| lanes.batch_share.store(share, Ordering::Relaxed));
        true
    }

    /// Begins to wait for room in the channel to the lanes at a node.
    fn wait_for_room(&mut self, number: i32) {
        if let Some(lanes) = self.by_node.get_mut(&number)
            && !std::mem::replace(&mut lanes.is_waiting, true)
        {
            let sender = lanes.sender.clone();
            self.room.push(async move { (number, sender.reserve_owned().await) }.boxed());
        }
    }

    /// Sends waiting deliveries to the lanes at a node, as many as there is room for.
    fn fill(&mut self, number: i32, room: Result<OwnedPermit<Box<Delivery>>, SendError<()>>) {
        let Some(lanes) = self.by_node.get_mut(&number) else { return };
        lanes.is_waiting = false;
        // Closed only when the lanes have ended, and then the worker stops.
        let Ok(room) = room else { return };
        if let Some(delivery) = lanes.waiting.pop_front() {
            room.send(delivery);
        }
        while let Some(delivery) = lanes.waiting.pop_front() {
            if let Err(TrySendError::Full(delivery) | TrySendError::Closed(delivery)) =
                lanes.sender.try_send(delivery)
            {
                lanes.waiting.push_front(delivery);
                return self.wait_for_room(number);
            }
        }
    }

    /// Gives back the deliveries that wait for nodes that are away: they must not keep others from coming.
    fn give_back(&mut self) {
        for lanes in self.by_node.values_mut() {
            if !lanes.waiting.is_empty() && lanes.node.is_away() {
                self.overflow.extend(lanes.waiting.drain(..));
            }
        }
    }

    /// Sends deliveries that find no room back to their queue, without an attempt. Those of a lost channel come again by themselves.
    async fn settle_overflow(&mut self) {
        if self.overflow.is_empty() {
            return;
        }
        let (lost, overflow): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.overflow).into_iter().partition(|delivery| delivery.channel.is_over());
        abandon_deliveries(&self.shared, lost).await;
        let delay = self.shared.consumer.retry.rung_for(AWAY_DELAY).unwrap_or_default();
        let decided = overflow.into_iter().map(|delivery| {
            let mut decided = postpone_delivery(&self.shared, delivery);
            decided.outcome = Outcome::Postponed { delay };
            decided
        });
        let decided: Vec<_> = decided.collect();
        let trace = self.shared.traces.begin_batch(decided.len());
        if settle(&self.shared, &trace, decided).await.is_err() {
            tracing::debug!(consumer = %self.shared.consumer.name, "messages without room are left to redelivery");
        }
    }
}
