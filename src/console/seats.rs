//! Places for connections: how many, of whom, and who makes room.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Connections at the same time.
const ALL: usize = 200;
/// From one address, where it is not the proxy's.
const ADDRESS: usize = 100;
/// Of one person.
const PERSON: usize = 40;

/// The places. They are not queued for: who has no session makes room for who comes, the oldest first.
pub(crate) struct Seats {
    /// Behind a proxy all come from its address.
    by_address: bool,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    next: u64,
    /// In the order in which they came.
    seats: BTreeMap<u64, Known>,
}

struct Known {
    peer: IpAddr,
    person: Option<String>,
    leave: CancellationToken,
}

/// A connection's place; dropped, it is free again.
pub(crate) struct Seat {
    seats: Arc<Seats>,
    number: u64,
    /// Somebody else needs the place.
    pub(crate) leave: CancellationToken,
}

impl Seats {
    pub(crate) fn new(by_address: bool) -> Arc<Self> {
        Arc::new(Self { by_address, taken: Mutex::default() })
    }

    /// A place for a connection; `None` where everybody who sits there has a session.
    pub(crate) fn take(self: &Arc<Self>, peer: IpAddr) -> Option<Seat> {
        let mut taken = self.lock();
        if self.by_address && !taken.has_room(ADDRESS, |known| known.peer == peer) {
            return None;
        }
        if !taken.has_room(ALL, |_| true) {
            return None;
        }
        let (number, leave) = (taken.next, CancellationToken::new());
        taken.next += 1;
        taken.seats.insert(number, Known { peer, person: None, leave: leave.clone() });
        Some(Seat { seats: Arc::clone(self), number, leave })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Every change leaves it whole.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// Is there room for one more of these? Where there is none, the oldest of them without a session goes.
    fn has_room(&mut self, most: usize, among: impl Fn(&Known) -> bool) -> bool {
        if self.seats.values().filter(|known| among(known)).count() < most {
            return true;
        }
        let oldest = self.seats.iter().find(|(_, known)| known.person.is_none() && among(known));
        let Some(number) = oldest.map(|(number, _)| *number) else { return false };
        if let Some(known) = self.seats.remove(&number) {
            known.leave.cancel();
        }
        true
    }
}

impl Seat {
    /// Somebody's session came over it; `false` where they have as many connections as a person may.
    pub(crate) fn is_of(&self, person: &str) -> bool {
        let mut taken = self.seats.lock();
        let others = taken
            .seats
            .iter()
            .filter(|(number, known)| **number != self.number && known.person.as_deref() == Some(person));
        if others.count() >= PERSON {
            return false;
        }
        if let Some(known) = taken.seats.get_mut(&self.number) {
            known.person = Some(person.to_owned());
        }
        true
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.lock().seats.remove(&self.number);
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
        let seats = Seats::new(true);
        let take = |number: usize| seats.take(address(number));
        let operator = take(1_000).unwrap();
        assert!(operator.is_of("bo"));
        let strangers: Vec<Seat> = (0..ALL).map(|number| take(number).unwrap()).collect();
        assert!(!operator.leave.is_cancelled());
        let gone: Vec<bool> = strangers.iter().map(|seat| seat.leave.is_cancelled()).collect();
        assert!(gone[0] && !gone[1], "the oldest makes room");
        assert!(take(2_000).is_some());
        drop(strangers);
        assert_eq!(seats.lock().seats.len(), 1);
    }

    #[test]
    fn one_address_or_one_person_does_not_take_all() {
        let seats = Seats::new(true);
        let all: Vec<Seat> = (0..ALL).map(|_| seats.take(address(1)).unwrap()).collect();
        assert_eq!(all.iter().filter(|seat| !seat.leave.is_cancelled()).count(), ADDRESS);
        drop(all);
        let proxy = Seats::new(false);
        let all: Vec<Seat> = (0..ALL).map(|_| proxy.take(address(1)).unwrap()).collect();
        assert!(all.iter().all(|seat| !seat.leave.is_cancelled()));
        let of_ana = all.iter().filter(|seat| seat.is_of("ana")).count();
        assert_eq!(of_ana, PERSON);
        assert!(all[0].is_of("ana"), "over a connection that she has");
        for (index, seat) in all.iter().enumerate() {
            assert!(seat.is_of(&format!("person {index}")));
        }
        assert!(proxy.take(address(1)).is_none(), "everybody there has a session");
    }
}
