//! Deliveries by tenant: tenants take turns, so that one with much waiting delays another for a round at most. Within a tenant the order is
//! kept.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::Instant;

use super::aside::MAX_WAIT_ASIDE;
use oncely_core::identity::IdentityPart;

/// Returns a delivery's tenant; `None` if it is unknown. Those are one more tenant.
pub(crate) type TenantFn<T> = Box<dyn Fn(&T) -> Option<IdentityPart> + Send + Sync>;

/// Room of late tenants among the deliveries that wait here. The broker sends no more than it does ahead, in messages of a queue and in
/// bytes: without a bound, theirs would keep those behind them in the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct LateRoom<T> {
    pub(super) messages: usize,
    pub(super) bytes: usize,
    /// Returns a delivery's bytes.
    pub(super) size_of: fn(&T) -> usize,
}

/// Deliveries that wait for a lane, by tenant.
pub(super) struct TenantTurns<T> {
    tenant_of: TenantFn<T>,
    late_room: LateRoom<T>,
    /// Maximum number of deliveries that are sorted: as many as the broker sends ahead.
    max_deliveries: usize,
    /// Received, and not yet among `waiting`.
    received: Vec<T>,
    /// With the time at which each has arrived.
    waiting: HashMap<Option<IdentityPart>, VecDeque<(Instant, T)>>,
    /// Tenants in the order of their turns. Each one with waiting deliveries is here once.
    order: VecDeque<Option<IdentityPart>>,
    count: usize,
}

impl<T> fmt::Debug for TenantTurns<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenantTurns").field("count", &self.count).field("tenants", &self.order.len()).finish()
    }
}

impl<T> TenantTurns<T> {
    pub(super) fn new(tenant_of: TenantFn<T>, max_deliveries: usize, late_room: LateRoom<T>) -> Self {
        Self {
            tenant_of,
            late_room,
            max_deliveries: max_deliveries.max(1),
            received: Vec::new(),
            waiting: HashMap::new(),
            order: VecDeque::new(),
            count: 0,
        }
    }

    /// Takes up to `max_deliveries` deliveries into `batch`, and waits while there are none; returns their number, 0 at the end.
    ///
    /// May be dropped at any time: received deliveries stay here.
    pub(super) async fn receive(
        &mut self,
        receiver: &mut mpsc::Receiver<T>,
        batch: &mut Vec<T>,
        max_deliveries: usize,
        late: &HashSet<IdentityPart>,
    ) -> usize {
        self.enqueue_received(receiver);
        if self.count == 0 {
            receiver.recv_many(&mut self.received, self.max_deliveries).await;
            self.enqueue_received(receiver);
        }
        self.take(batch, max_deliveries, late)
    }

    /// Takes up to `max_deliveries` deliveries into `batch` without waiting.
    pub(super) fn receive_now(
        &mut self,
        receiver: &mut mpsc::Receiver<T>,
        batch: &mut Vec<T>,
        max_deliveries: usize,
        late: &HashSet<IdentityPart>,
    ) -> usize {
        self.enqueue_received(receiver);
        self.take(batch, max_deliveries, late)
    }

    /// Returns whether a delivery waits, or has just arrived, of a tenant that is not late.
    pub(super) fn has_others(
        &mut self,
        receiver: &mut mpsc::Receiver<T>,
        late: &HashSet<IdentityPart>,
    ) -> bool {
        self.enqueue_received(receiver);
        self.order.iter().any(|tenant| !is_late(tenant.as_ref(), late))
    }

    /// Takes a delivery of a late tenant into `batch` before those of others. Returns whether there is one.
    pub(super) fn take_late(&mut self, batch: &mut Vec<T>, late: &HashSet<IdentityPart>) -> bool {
        let Some(next) = self.order.iter().position(|tenant| is_late(tenant.as_ref(), late)) else {
            return false;
        };
        let tenant = self.order.remove(next);
        let order = std::mem::replace(&mut self.order, tenant.into_iter().collect());
        let taken = self.share_out(batch, 1);
        let tenants = std::mem::replace(&mut self.order, order);
        self.order.extend(tenants);
        taken > 0
    }

    /// Returns whether a delivery is of a late tenant.
    pub(super) fn is_of_late(&self, one: &T, late: &HashSet<IdentityPart>) -> bool {
        !late.is_empty() && is_late((self.tenant_of)(one).as_ref(), late)
    }

    /// Returns whether a delivery of a late tenant waits.
    pub(super) fn has_late(&self, late: &HashSet<IdentityPart>) -> bool {
        self.order.iter().any(|tenant| is_late(tenant.as_ref(), late))
    }

    /// Sorts received deliveries by tenant.
    fn enqueue_received(&mut self, receiver: &mut mpsc::Receiver<T>) {
        for one in std::mem::take(&mut self.received) {
            self.put(one);
        }
        while self.count < self.max_deliveries {
            match receiver.try_recv() {
                Ok(one) => self.put(one),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
    }

    /// Adds a delivery to those of its tenant.
    fn put(&mut self, one: T) {
        let tenant = (self.tenant_of)(&one);
        let one = (Instant::now(), one);
        self.count += 1;
        match self.waiting.get_mut(&tenant) {
            Some(waiting) => waiting.push_back(one),
            None => {
                self.order.push_back(tenant.clone());
                self.waiting.insert(tenant, VecDeque::from([one]));
            }
        }
    }

    /// Takes equal shares of all tenants with waiting deliveries; an unused share goes to the others. Those of `late` tenants wait for all
    /// others, and come one at a time: each may use up its time. If there is no room for them, or one has waited for two minutes, the same
    /// number of them comes with others, as far as there is room, or many of them alone, of which some run: the rest goes aside untried,
    /// and makes room for those behind.
    fn take(&mut self, batch: &mut Vec<T>, max_deliveries: usize, late: &HashSet<IdentityPart>) -> usize {
        if late.is_empty() {
            return self.share_out(batch, max_deliveries);
        }
        let (waits, others) = self.order.drain(..).partition(|tenant| is_late(tenant.as_ref(), late));
        let are_many = self.has_no_room(&waits, Instant::now());
        self.order = others;
        let taken = self.share_out(batch, max_deliveries);
        let others = std::mem::replace(&mut self.order, waits);
        let of_late = match taken {
            0 if !batch.is_empty() => 0,
            // After one that takes long the others go aside untried.
            0 if are_many => self.share_out(batch, max_deliveries.max(self.late_room.messages / 2).max(2)),
            0 => self.share_out(batch, max_deliveries.min(1)),
            // A full batch has one more: else a window of batches of one would never move on.
            _ if are_many => self.share_out(batch, taken.min(max_deliveries - taken).max(1)),
            _ => 0,
        };
        let waits = std::mem::replace(&mut self.order, others);
        self.order.extend(waits);
        taken + of_late
    }

    /// Returns whether the deliveries of late tenants are too many, too large together, or one has waited too long.
    fn has_no_room(&self, late: &VecDeque<Option<IdentityPart>>, now: Instant) -> bool {
        let LateRoom { messages, bytes, size_of } = self.late_room;
        let (mut count, mut size, mut is_old) = (0, 0, false);
        for (arrived, one) in late.iter().filter_map(|tenant| self.waiting.get(tenant)).flatten() {
            count += 1;
            size += size_of(one);
            is_old |= now.saturating_duration_since(*arrived) > MAX_WAIT_ASIDE;
        }
        count > messages || size > bytes || is_old
    }

    /// Moves up to `max_deliveries` messages into a batch, with equal shares for the tenants that wait. Returns their number.
    fn share_out(&mut self, batch: &mut Vec<T>, max_deliveries: usize) -> usize {
        let share = (max_deliveries / self.order.len().max(1)).max(1);
        let mut room = max_deliveries;
        while room > 0
            && let Some(tenant) = self.order.pop_front()
        {
            let Some(waiting) = self.waiting.get_mut(&tenant) else { continue };
            let count = share.min(room).min(waiting.len());
            batch.extend(waiting.drain(..count).map(|(_, one)| one));
            room -= count;
            self.count -= count;
            if waiting.is_empty() {
                self.waiting.remove(&tenant);
            } else {
                self.order.push_back(tenant);
            }
        }
        max_deliveries - room
    }
}

fn is_late(tenant: Option<&IdentityPart>, late: &HashSet<IdentityPart>) -> bool {
    tenant.is_some_and(|tenant| late.contains(tenant))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// A message of a tenant: its name and a number.
    type One = (&'static str, u32);

    fn turns(max_deliveries: usize) -> TenantTurns<One> {
        let late_room = LateRoom { messages: max_deliveries / 2, bytes: 60_000, size_of: |_| 100 };
        TenantTurns::new(Box::new(|one| IdentityPart::new(one.0.as_bytes()).ok()), max_deliveries, late_room)
    }

    fn channel(messages: impl IntoIterator<Item = One>) -> (mpsc::Sender<One>, mpsc::Receiver<One>) {
        let (sender, receiver) = mpsc::channel(4_000);
        for one in messages {
            sender.try_send(one).unwrap();
        }
        (sender, receiver)
    }

    fn batch(
        turns: &mut TenantTurns<One>,
        receiver: &mut mpsc::Receiver<One>,
        max_deliveries: usize,
    ) -> Vec<One> {
        let mut batch = Vec::new();
        turns.receive(receiver, &mut batch, max_deliveries, &HashSet::new()).now_or_never();
        batch
    }

    #[test]
    fn those_of_a_late_tenant_that_are_most_of_what_is_sent_ahead_make_room() {
        let (_sender, mut receiver) = channel(many("late", 900).chain(many("acme", 3)));
        let late = HashSet::from([IdentityPart::new(b"late").unwrap()]);
        let mut turns = turns(1_000);
        let mut sizes = Vec::new();
        for max_deliveries in [1, 300, 300, 300, 300] {
            let mut batch = Vec::new();
            turns.receive_now(&mut receiver, &mut batch, max_deliveries, &late);
            sizes.push((batch.len(), batch.iter().filter(|one| one.0 == "acme").count()));
        }
        assert_eq!(sizes, [(2, 1), (4, 2), (300, 0), (300, 0), (1, 0)]);
        turns.late_room.messages = 200;
        let mut batch = Vec::new();
        turns.receive_now(&mut receiver, &mut batch, 1, &late);
        assert_eq!(batch.len(), 100, "also where a batch has one message");
    }

    #[test]
    fn those_of_a_late_tenant_wait_for_all_others_and_come_one_at_a_time() {
        let (_sender, mut receiver) = channel(many("late", 5).chain(many("acme", 3)));
        let late = HashSet::from([IdentityPart::new(b"late").unwrap()]);
        let mut turns = turns(2_000);
        assert!(turns.has_others(&mut receiver, &late));
        let mut batch = Vec::new();
        assert_eq!(turns.receive_now(&mut receiver, &mut batch, 100, &late), 3);
        assert!(!turns.has_others(&mut receiver, &late));
        assert_eq!(
            turns.receive_now(&mut receiver, &mut batch, 100, &late),
            0,
            "none joins a batch of others"
        );
        assert_eq!(batch, many("acme", 3).collect::<Vec<_>>());
        for number in 0..2 {
            batch.clear();
            assert_eq!(turns.receive_now(&mut receiver, &mut batch, 100, &late), 1);
            assert_eq!(batch, [("late", number)]);
        }
        batch.clear();
        assert_eq!(turns.receive_now(&mut receiver, &mut batch, 100, &HashSet::new()), 3, "late no more");
    }

    #[test]
    fn those_of_a_late_tenant_have_room_in_number_and_bytes_and_for_two_minutes() {
        let (_sender, mut receiver) = channel(many("late", 601).chain(many("acme", 3)));
        let mut turns = turns(2_000);
        turns.receive_now(&mut receiver, &mut Vec::new(), 0, &HashSet::new());
        let late = VecDeque::from([IdentityPart::new(b"late").ok()]);
        let now = Instant::now();
        assert!(turns.has_no_room(&late, now), "60,100 bytes");
        turns.late_room.bytes = 60_100;
        assert!(!turns.has_no_room(&late, now));
        assert!(turns.has_no_room(&late, now + MAX_WAIT_ASIDE * 2));
        turns.late_room.messages = 600;
        assert!(turns.has_no_room(&late, now));
        assert!(!turns.has_no_room(&VecDeque::from([IdentityPart::new(b"acme").ok()]), now));
    }

    #[test]
    fn one_of_a_late_tenant_comes_alone_before_others_and_they_take_turns() {
        let (_sender, mut receiver) = channel(many("late", 3).chain(many("slow", 2)).chain(many("acme", 1)));
        let late = HashSet::from(["late", "slow"].map(|name| IdentityPart::new(name.as_bytes()).unwrap()));
        let mut turns = turns(1_000);
        assert!(turns.has_others(&mut receiver, &late));
        let mut batch = Vec::new();
        while turns.take_late(&mut batch, &late) {}
        assert_eq!(batch, [("late", 0), ("slow", 0), ("late", 1), ("slow", 1), ("late", 2)]);
        assert!(turns.has_others(&mut receiver, &late) && !turns.has_late(&late));
    }

    fn many(tenant: &'static str, count: u32) -> impl Iterator<Item = One> {
        (0..count).map(move |number| (tenant, number))
    }

    #[test]
    fn who_has_one_message_is_in_the_next_batch_however_many_another_has() {
        let (_sender, mut receiver) = channel(many("flood", 1_000).chain([("acme", 0)]));
        let mut turns = turns(2_000);
        let first = batch(&mut turns, &mut receiver, 100);
        assert_eq!(first.iter().filter(|one| one.0 == "acme").count(), 1);
        assert_eq!(first.len(), 100, "what acme does not need is the other's");
    }

    #[test]
    fn tenants_have_equal_shares_and_keep_their_own_order() {
        let (_sender, mut receiver) = channel(many("a", 90).chain(many("b", 90)).chain(many("c", 10)));
        let mut turns = turns(2_000);
        let mut all = Vec::new();
        let mut shares = Vec::new();
        loop {
            let batch = batch(&mut turns, &mut receiver, 30);
            if batch.is_empty() {
                break;
            }
            shares.push(["a", "b", "c"].map(|name| batch.iter().filter(|one| one.0 == name).count()));
            all.extend(batch);
        }
        assert_eq!(shares[0], [10, 10, 10]);
        assert!(shares[1..6].iter().all(|share| share[..2] == [15, 15]), "{shares:?}");
        for (name, count) in [("a", 90), ("b", 90), ("c", 10)] {
            let own: Vec<One> = all.iter().filter(|one| one.0 == name).copied().collect();
            assert_eq!(own, many(name, count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn more_tenants_than_a_batch_has_places_all_come_within_one_round() {
        const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];
        let (_sender, mut receiver) = channel(NAMES.into_iter().flat_map(|name| many(name, 50)));
        let mut turns = turns(2_000);
        let round: Vec<One> = (0..4).flat_map(|_| batch(&mut turns, &mut receiver, 2)).collect();
        let seen: std::collections::BTreeSet<&str> = round.iter().map(|one| one.0).collect();
        assert_eq!(seen.len(), NAMES.len(), "{round:?}");
    }

    #[test]
    fn no_more_is_held_than_the_broker_sends_ahead() {
        let (sender, mut receiver) = channel(many("flood", 300));
        let mut turns = turns(100);
        assert_eq!(batch(&mut turns, &mut receiver, 10).len(), 10);
        assert_eq!((turns.count, sender.max_capacity() - sender.capacity()), (90, 200));
    }

    #[test]
    fn those_whose_tenant_nobody_knows_are_one_tenant_and_nothing_is_lost_at_the_end() {
        let (sender, mut receiver) = channel(many("", 50).chain([("acme", 0)]));
        drop(sender);
        let mut turns = turns(100);
        let first = batch(&mut turns, &mut receiver, 4);
        assert!(first.contains(&("acme", 0)) && first.contains(&("", 0)), "{first:?}");
        let mut left = 51 - first.len();
        while left > 0 {
            let more = batch(&mut turns, &mut receiver, 20).len();
            assert_ne!(more, 0);
            left -= more;
        }
        assert!(batch(&mut turns, &mut receiver, 20).is_empty(), "the end");
    }
}
