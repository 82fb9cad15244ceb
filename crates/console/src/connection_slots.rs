//! Limits of simultaneous connections, in total, per address and per user.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Maximum number of connections in total.
const MAX_CONNECTIONS: usize = 200;
/// Maximum number of connections from one address, unless it is the proxy's.
const MAX_PER_ADDRESS: usize = 100;
/// Maximum number of connections of one user.
const MAX_PER_USER: usize = 40;

/// The slots of all connections. There is no queue: the oldest connection without a session is closed for a new one.
pub(crate) struct ConnectionSlots {
    /// Not behind a proxy, where all connections have its address.
    by_address: bool,
    occupied_slots: Mutex<OccupiedSlots>,
}

#[derive(Default)]
struct OccupiedSlots {
    next_number: u64,
    /// In order of arrival.
    slots: BTreeMap<u64, SlotHolder>,
}

struct SlotHolder {
    peer: IpAddr,
    user: Option<String>,
    eviction: CancellationToken,
}

/// The slot of a connection, freed when dropped.
pub(crate) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    number: u64,
    /// Cancelled if another connection needs the slot.
    pub(crate) eviction: CancellationToken,
}

impl ConnectionSlots {
    pub(crate) fn new(by_address: bool) -> Arc<Self> {
        Arc::new(Self { by_address, occupied_slots: Mutex::default() })
    }

    /// Takes a slot for a connection; `None` if the limit of its address or of all is reached, and all these connections have a session.
    pub(crate) fn take(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionSlot> {
        let mut occupied_slots = self.lock();
        if self.by_address && !occupied_slots.make_room(MAX_PER_ADDRESS, |holder| holder.peer == peer) {
            return None;
        }
        if !occupied_slots.make_room(MAX_CONNECTIONS, |_| true) {
            return None;
        }
        let (number, eviction) = (occupied_slots.next_number, CancellationToken::new());
        occupied_slots.next_number += 1;
        occupied_slots.slots.insert(number, SlotHolder { peer, user: None, eviction: eviction.clone() });
        Some(ConnectionSlot { slots: Arc::clone(self), number, eviction })
    }

    fn lock(&self) -> MutexGuard<'_, OccupiedSlots> {
        // A panic can't leave it inconsistent.
        self.occupied_slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OccupiedSlots {
    /// Makes room for one more slot of a group, if necessary by evicting the group's oldest connection without a session; returns whether
    /// there is room.
    fn make_room(&mut self, limit: usize, is_in_group: impl Fn(&SlotHolder) -> bool) -> bool {
        if self.slots.values().filter(|holder| is_in_group(holder)).count() < limit {
            return true;
        }
        let oldest = self.slots.iter().find(|(_, holder)| holder.user.is_none() && is_in_group(holder));
        let Some(number) = oldest.map(|(number, _)| *number) else { return false };
        if let Some(holder) = self.slots.remove(&number) {
            holder.eviction.cancel();
        }
        true
    }
}

impl ConnectionSlot {
    /// Assigns the connection to a user; returns `false` if the user has the maximum number of connections.
    pub(crate) fn assign_to(&self, user: &str) -> bool {
        let mut occupied_slots = self.slots.lock();
        let other_slots = occupied_slots
            .slots
            .iter()
            .filter(|(number, holder)| **number != self.number && holder.user.as_deref() == Some(user));
        if other_slots.count() >= MAX_PER_USER {
            return false;
        }
        if let Some(holder) = occupied_slots.slots.get_mut(&self.number) {
            holder.user = Some(user.to_owned());
        }
        true
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.lock().slots.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: usize) -> IpAddr {
        IpAddr::from([10, 0, u8::try_from(number / 250).unwrap(), u8::try_from(number % 250).unwrap()])
    }

    #[test]
    fn strangers_make_room_and_people_stay() {
        let slots = ConnectionSlots::new(true);
        let take = |number: usize| slots.take(address(number));
        let operator = take(1_000).unwrap();
        assert!(operator.assign_to("bo"));
        let strangers: Vec<ConnectionSlot> =
            (0..MAX_CONNECTIONS).map(|number| take(number).unwrap()).collect();
        assert!(!operator.eviction.is_cancelled());
        let gone: Vec<bool> = strangers.iter().map(|slot| slot.eviction.is_cancelled()).collect();
        assert!(gone[0] && !gone[1], "the oldest makes room");
        assert!(take(2_000).is_some());
        drop(strangers);
        assert_eq!(slots.lock().slots.len(), 1);
    }

    #[test]
    fn one_address_or_one_person_does_not_take_all() {
        let slots = ConnectionSlots::new(true);
        let all: Vec<ConnectionSlot> =
            (0..MAX_CONNECTIONS).map(|_| slots.take(address(1)).unwrap()).collect();
        assert_eq!(all.iter().filter(|slot| !slot.eviction.is_cancelled()).count(), MAX_PER_ADDRESS);
        drop(all);
        let proxy = ConnectionSlots::new(false);
        let all: Vec<ConnectionSlot> =
            (0..MAX_CONNECTIONS).map(|_| proxy.take(address(1)).unwrap()).collect();
        assert!(all.iter().all(|slot| !slot.eviction.is_cancelled()));
        let of_ana = all.iter().filter(|slot| slot.assign_to("ana")).count();
        assert_eq!(of_ana, MAX_PER_USER);
        assert!(all[0].assign_to("ana"), "over a connection that she has");
        for (index, slot) in all.iter().enumerate() {
            assert!(slot.assign_to(&format!("user {index}")));
        }
        assert!(proxy.take(address(1)).is_none(), "everybody there has a session");
    }
}
