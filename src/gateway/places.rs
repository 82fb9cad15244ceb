//! Places for connections: how many there are, how many of them one address may have, and who makes room for one more.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio_util::sync::CancellationToken;

/// All places.
pub(super) struct Places {
    most: usize,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// By their numbers.
    connections: HashMap<u64, Connection>,
    /// How many each address has.
    counts: HashMap<IpAddr, usize>,
    next: u64,
}

struct Connection {
    address: IpAddr,
    phase: Phase,
    since: Instant,
    leave: CancellationToken,
}

/// What a connection is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The headers of its next request are not there yet.
    Idle,
    /// A body is on its way.
    Arriving,
    /// A whole request is there, and its answer is not over.
    Working,
}

impl Places {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, open: Mutex::default() })
    }

    /// A place for a connection from this address; none where nobody makes room for it. `is_shared`: it is a proxy's, with many clients behind it.
    ///
    /// One address has nine tenths of all places at most. Who has as many, or comes when all are taken, displaces the connection that has been
    /// idle longest, of the address that has most. One whose body is on its way counts as idle where its address has more places than that
    /// of the newcomer will have. No whole request is broken off.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr, is_shared: bool) -> Option<Arc<Place>> {
        let address = network(address);
        let mut open = self.lock();
        let own = open.count(address);
        let share = if is_shared { self.most } else { self.most - self.most / 10 };
        if own >= share || open.connections.len() >= self.most {
            let is_full = own < share;
            let may_go = |one: &Connection| match one.phase {
                Phase::Idle => is_full || one.address == address,
                Phase::Arriving => is_full && open.count(one.address) > own + 1,
                Phase::Working => false,
            };
            let chosen = open.connections.iter().filter(|(_, one)| may_go(one)).max_by_key(|(_, one)| {
                (open.count(one.address), one.phase == Phase::Idle, Reverse(one.since))
            });
            let number = *chosen?.0;
            open.end(number);
        }
        let number = open.next;
        open.next += 1;
        *open.counts.entry(address).or_default() += 1;
        let leave = CancellationToken::new();
        let one = Connection { address, phase: Phase::Idle, since: Instant::now(), leave: leave.clone() };
        open.connections.insert(number, one);
        drop(open);
        Some(Arc::new(Place { places: Arc::clone(self), number, leave }))
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        // Every change leaves it whole.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn count(&self, address: IpAddr) -> usize {
        self.counts.get(&address).copied().unwrap_or(0)
    }

    fn end(&mut self, number: u64) {
        let Some(one) = self.connections.remove(&number) else { return };
        one.leave.cancel();
        if let Some(count) = self.counts.get_mut(&one.address) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&one.address);
            }
        }
    }
}

/// The place of one connection, until it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    leave: CancellationToken,
}

impl Place {
    /// Waits until another connection has it.
    pub(super) async fn lost(&self) {
        self.leave.cancelled().await;
    }

    /// The headers of a request are there; false where the place is lost, and nothing of the request may begin.
    pub(super) fn begin(&self) -> bool {
        self.set(Phase::Arriving, |_| true)
    }

    /// The body is there as a whole, or nobody waits for it any more.
    pub(super) fn has_arrived(&self) {
        self.set(Phase::Working, |phase| phase == Phase::Arriving);
    }

    /// The answer is over.
    pub(super) fn is_idle(&self) {
        self.set(Phase::Idle, |_| true);
    }

    fn set(&self, phase: Phase, from: impl FnOnce(Phase) -> bool) -> bool {
        let mut open = self.places.lock();
        let Some(one) = open.connections.get_mut(&self.number) else { return false };
        if from(one.phase) {
            (one.phase, one.since) = (phase, Instant::now());
        }
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().end(self.number);
    }
}

/// Whose an address is: of IPv6, a network of 64 bits is one customer's.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn is_lost(place: &Place) -> bool {
        place.leave.is_cancelled()
    }

    #[test]
    fn the_one_that_is_idle_longest_makes_room_and_no_whole_request_does() {
        let places = Places::new(3);
        let [first, second, third] = [1, 2, 3].map(|last| places.enter(address(last), false).unwrap());
        assert!(first.begin());
        first.has_arrived();
        let fourth = places.enter(address(4), false).unwrap();
        assert!(is_lost(&second) && !is_lost(&first) && !is_lost(&third));
        assert!(!second.begin(), "nothing begins on a place that is lost");
        for place in [&third, &fourth] {
            assert!(place.begin());
        }
        assert!(
            places.enter(address(5), false).is_none(),
            "a body on its way, of an address that has no more than the newcomer"
        );
        first.is_idle();
        assert!(places.enter(address(5), false).is_some() && is_lost(&first));
        drop((third, fourth));
        assert!(places.enter(address(5), false).is_some());
    }

    #[test]
    fn one_address_keeps_no_other_one_out() {
        let places = Places::new(10);
        let greedy: Vec<_> = (0..9).map(|_| places.enter(address(1), false).unwrap()).collect();
        for place in &greedy {
            place.begin();
        }
        assert!(places.enter(address(1), false).is_none(), "nine tenths");
        let mut others = Vec::new();
        for last in 2..6 {
            others.push(places.enter(address(last), false).unwrap());
            others.last().unwrap().begin();
            others.last().unwrap().has_arrived();
        }
        // The first one had the last place; the others those of bodies that are on their way.
        assert_eq!(greedy.iter().filter(|place| is_lost(place)).count(), 3);
        assert!(is_lost(&greedy[0]) && is_lost(&greedy[2]) && !is_lost(&greedy[3]), "the oldest");
        assert!(others.iter().all(|place| !is_lost(place)));
        // Its own idle ones make room for its next ones.
        greedy[5].is_idle();
        assert!(places.enter(address(1), false).is_some() && is_lost(&greedy[5]));
    }

    #[test]
    fn behind_a_proxy_are_many_and_a_network_is_one() {
        let places = Places::new(10);
        let proxied: Vec<_> = (0..10).map(|_| places.enter(address(1), true)).collect();
        assert!(proxied.iter().all(Option::is_some));
        let places = Places::new(10);
        let of = |last: u16| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last));
        let own: Vec<_> = (0..9).map(|last| places.enter(of(last), false).unwrap()).collect();
        own.iter().for_each(|place| assert!(place.begin()));
        assert!(places.enter(of(10), false).is_none());
        let other = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 1));
        assert!(places.enter(other, false).is_some());
    }
}
