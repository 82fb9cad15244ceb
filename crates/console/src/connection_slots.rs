//! Limits of simultaneous connections, in total, per address and per user.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Connections in total.
const ALL: usize = 200;
/// Connections from one address, unless it is the proxy's.
const ADDRESS: usize = 100;
/// Connections of one user.
const USER: usize = 40;

/// The places. There is no queue: the oldest connection without a session is closed for a new one.
pub(crate) struct ConnectionSlots {
    /// Not behind a proxy, where all connections have its address.
    by_address: bool,
    taken: Mutex<OccupiedSlots>,
}

#[derive(Default)]
struct OccupiedSlots {
    next: u64,
    /// In order of arrival.
    slots: BTreeMap<u64, SlotHolder>,
}

struct SlotHolder {
    peer: IpAddr,
    user: Option<String>,
    leave: CancellationToken,
}

/// A connection's place, freed when dropped.
pub(crate) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    number: u64,
    /// Cancelled if another connection needs the place.
    pub(crate) leave: CancellationToken,
}

impl ConnectionSlots {
    pub(crate) fn new(by_address: bool) -> Arc<Self> {
        Arc::new(Self { by_address, taken: Mutex::default() })
    }

    /// Takes a place for a connection; `None` if all that compete for it have a session.
    pub(crate) fn take(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionSlot> {
        let mut taken = self.lock();
        if self.by_address && !taken.has_room(ADDRESS, |known| known.peer == peer) {
            return None;
        }
        if !taken.has_room(ALL, |_| true) {
            return None;
        }
        let (number, leave) = (taken.next, CancellationToken::new());
        taken.next += 1;
        taken.slots.insert(number, SlotHolder { peer, user: None, leave: leave.clone() });
        Some(ConnectionSlot { slots: Arc::clone(self), number, leave })
    }

    fn lock(&self) -> MutexGuard<'_, OccupiedSlots> {
        // A panic can't leave it inconsistent.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OccupiedSlots {
    /// Returns whether there is room for one more of these; closes the oldest of them without a session if necessary.
    fn has_room(&mut self, most: usize, among: impl Fn(&SlotHolder) -> bool) -> bool {
        if self.slots.values().filter(|known| among(known)).count() < most {
            return true;
        }
        let oldest = self.slots.iter().find(|(_, known)| known.user.is_none() && among(known));
        let Some(number) = oldest.map(|(number, _)| *number) else { return false };
        if let Some(known) = self.slots.remove(&number) {
            known.leave.cancel();
        }
        true
    }
}

impl ConnectionSlot {
    /// Assigns the connection to a user; returns `false` if the user has the maximum number of connections.
    pub(crate) fn assign_to(&self, user: &str) -> bool {
        let mut taken = self.slots.lock();
        let others = taken
            .slots
            .iter()
            .filter(|(number, known)| **number != self.number && known.user.as_deref() == Some(user));
        if others.count() >= USER {
            return false;
        }
        if let Some(known) = taken.slots.get_mut(&self.number) {
            known.user = Some(user.to_owned());
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
        let strangers: Vec<ConnectionSlot> = (0..ALL).map(|number| take(number).unwrap()).collect();
        assert!(!operator.leave.is_cancelled());
        let gone: Vec<bool> = strangers.iter().map(|slot| slot.leave.is_cancelled()).collect();
        assert!(gone[0] && !gone[1], "the oldest makes room");
        assert!(take(2_000).is_some());
        drop(strangers);
        assert_eq!(slots.lock().slots.len(), 1);
    }

    #[test]
    fn one_address_or_one_person_does_not_take_all() {
        let slots = ConnectionSlots::new(true);
        let all: Vec<ConnectionSlot> = (0..ALL).map(|_| slots.take(address(1)).unwrap()).collect();
        assert_eq!(all.iter().filter(|slot| !slot.leave.is_cancelled()).count(), ADDRESS);
        drop(all);
        let proxy = ConnectionSlots::new(false);
        let all: Vec<ConnectionSlot> = (0..ALL).map(|_| proxy.take(address(1)).unwrap()).collect();
        assert!(all.iter().all(|slot| !slot.leave.is_cancelled()));
        let of_ana = all.iter().filter(|slot| slot.assign_to("ana")).count();
        assert_eq!(of_ana, USER);
        assert!(all[0].assign_to("ana"), "over a connection that she has");
        for (index, slot) in all.iter().enumerate() {
            assert!(slot.assign_to(&format!("user {index}")));
        }
        assert!(proxy.take(address(1)).is_none(), "everybody there has a session");
    }
}
