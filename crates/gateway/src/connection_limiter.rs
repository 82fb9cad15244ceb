//! Limits of connections: in total and per address, and the choice of the connection that is displaced.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio_util::sync::CancellationToken;

/// All places for connections.
pub(super) struct ConnectionLimiter {
    most: usize,
    open: Mutex<ConnectionTable>,
}

#[derive(Default)]
struct ConnectionTable {
    /// Connections by number.
    connections: HashMap<u64, Connection>,
    /// Number of connections per address.
    counts: HashMap<IpAddr, usize>,
    next: u64,
}

struct Connection {
    address: IpAddr,
    phase: ConnectionPhase,
    since: Instant,
    leave: CancellationToken,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionPhase {
    /// Waits for the headers of the next request.
    Idle,
    /// Receives a body.
    Arriving,
    /// Has a complete request and its answer is not finished.
    Working,
    /// Has an answer that is finished and may not have been written to the socket yet.
    Answered,
}

impl ConnectionLimiter {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, open: Mutex::default() })
    }

    /// Takes a place for a connection from this address; `None` if no place can be freed. `is_shared`: the address is a proxy's, with many
    /// clients.
    ///
    /// One address has nine tenths of all places at most; at that limit a new connection displaces the longest idle one of its address.
    /// When all places are taken, it displaces the longest idle one of the address with the most places. A connection that receives a body
    /// counts as idle if its address has more places than the new connection's address will have. A complete request is never aborted.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr, is_shared: bool) -> Option<Arc<ConnectionPermit>> {
        let address = network(address);
        let mut open = self.lock();
        let own = open.count(address);
        let share = if is_shared { self.most } else { self.most - self.most / 10 };
        if own >= share || open.connections.len() >= self.most {
            let is_full = own < share;
            let may_go = |one: &Connection| match one.phase {
                ConnectionPhase::Idle => is_full || one.address == address,
                ConnectionPhase::Arriving => is_full && open.count(one.address) > own + 1,
                ConnectionPhase::Working | ConnectionPhase::Answered => false,
            };
            let chosen = open.connections.iter().filter(|(_, one)| may_go(one)).max_by_key(|(_, one)| {
                (open.count(one.address), one.phase == ConnectionPhase::Idle, Reverse(one.since))
            });
            let number = *chosen?.0;
            open.end(number);
        }
        let number = open.next;
        open.next += 1;
        *open.counts.entry(address).or_default() += 1;
        let leave = CancellationToken::new();
        let one =
            Connection { address, phase: ConnectionPhase::Idle, since: Instant::now(), leave: leave.clone() };
        open.connections.insert(number, one);
        drop(open);
        Some(Arc::new(ConnectionPermit {
            places: Arc::clone(self),
            number,
            request: AtomicU64::new(0),
            leave,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        // Every change leaves it consistent.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionTable {
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
pub(super) struct ConnectionPermit {
    places: Arc<ConnectionLimiter>,
    number: u64,
    /// Number of the last request that has begun.
    request: AtomicU64,
    leave: CancellationToken,
}

impl ConnectionPermit {
    /// Waits until the place is given to another connection.
    pub(super) async fn lost(&self) {
        self.leave.cancelled().await;
    }

    /// Marks the headers of a request as received; returns false if the place is lost, so that the request must not begin.
    pub(super) fn begin_request(&self) -> bool {
        self.request.fetch_add(1, Ordering::Relaxed);
        self.set(ConnectionPhase::Arriving, |_| true)
    }

    /// Returns the number of the last request that has begun.
    pub(super) fn request(&self) -> u64 {
        self.request.load(Ordering::Relaxed)
    }

    /// Marks the body of this request as received or abandoned: the connection is not displaced until its answer is finished. Does nothing
    /// if the body has ended before, or another request has begun: the service may answer before it has read a body, and the client goes on.
    pub(super) fn finish_body(&self, request: u64) {
        self.set(ConnectionPhase::Working, |phase| {
            phase == ConnectionPhase::Arriving && request == self.request()
        });
    }

    /// Marks the answer as finished: the connection is idle once it is written.
    pub(super) fn finish_answer(&self) {
        self.set(ConnectionPhase::Answered, |_| true);
    }

    /// Marks all that was answered as written to the socket. Does nothing while an answer is not finished.
    pub(super) fn flush(&self) {
        self.set(ConnectionPhase::Idle, |phase| phase == ConnectionPhase::Answered);
    }

    fn set(&self, phase: ConnectionPhase, from: impl FnOnce(ConnectionPhase) -> bool) -> bool {
        let mut open = self.places.lock();
        let Some(one) = open.connections.get_mut(&self.number) else { return false };
        if from(one.phase) {
            (one.phase, one.since) = (phase, Instant::now());
        }
        true
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.places.lock().end(self.number);
    }
}

/// Returns the network of an address; an IPv6 network of 64 bits belongs to one customer.
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

    fn is_lost(place: &ConnectionPermit) -> bool {
        place.leave.is_cancelled()
    }

    #[test]
    fn the_one_that_is_idle_longest_makes_room_and_no_whole_request_does() {
        let places = ConnectionLimiter::new(3);
        let [first, second, third] = [1, 2, 3].map(|last| places.enter(address(last), false).unwrap());
        assert!(first.begin_request());
        first.finish_body(first.request());
        let fourth = places.enter(address(4), false).unwrap();
        assert!(is_lost(&second) && !is_lost(&first) && !is_lost(&third));
        assert!(!second.begin_request(), "nothing begins on a place that is lost");
        for place in [&third, &fourth] {
            assert!(place.begin_request());
        }
        assert!(
            places.enter(address(5), false).is_none(),
            "a body on its way, of an address that has no more than the newcomer"
        );
        first.finish_answer();
        assert!(places.enter(address(5), false).is_none(), "its answer may be cut off");
        first.flush();
        assert!(places.enter(address(5), false).is_some() && is_lost(&first));
        drop((third, fourth));
        assert!(places.enter(address(5), false).is_some());
    }

    #[test]
    fn a_body_that_ends_late_is_not_that_of_the_next_request() {
        let places = ConnectionLimiter::new(1);
        let place = places.enter(address(1), false).unwrap();
        assert!(place.begin_request());
        let first = place.request();
        place.finish_answer();
        assert!(place.begin_request());
        place.finish_body(first);
        let is_arriving = |place: &ConnectionPermit| {
            places.lock().connections[&place.number].phase == ConnectionPhase::Arriving
        };
        assert!(is_arriving(&place));
        place.finish_body(place.request());
        assert!(!is_arriving(&place));
    }

    #[test]
    fn one_address_keeps_no_other_one_out() {
        let places = ConnectionLimiter::new(10);
        let greedy: Vec<_> = (0..9).map(|_| places.enter(address(1), false).unwrap()).collect();
        for place in &greedy {
            place.begin_request();
        }
        assert!(places.enter(address(1), false).is_none(), "nine tenths");
        let mut others = Vec::new();
        for last in 2..6 {
            others.push(places.enter(address(last), false).unwrap());
            others.last().unwrap().begin_request();
            let place = others.last().unwrap();
            place.finish_body(place.request());
        }
        // The first connection had the last place; the others had places of bodies that were arriving.
        assert_eq!(greedy.iter().filter(|place| is_lost(place)).count(), 3);
        assert!(is_lost(&greedy[0]) && is_lost(&greedy[2]) && !is_lost(&greedy[3]), "the oldest");
        assert!(others.iter().all(|place| !is_lost(place)));
        // The address's idle connections make room for its new ones.
        greedy[5].finish_answer();
        greedy[5].flush();
        assert!(places.enter(address(1), false).is_some() && is_lost(&greedy[5]));
    }

    #[test]
    fn behind_a_proxy_are_many_and_a_network_is_one() {
        let places = ConnectionLimiter::new(10);
        let proxied: Vec<_> = (0..10).map(|_| places.enter(address(1), true)).collect();
        assert!(proxied.iter().all(Option::is_some));
        let places = ConnectionLimiter::new(10);
        let of = |last: u16| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last));
        let own: Vec<_> = (0..9).map(|last| places.enter(of(last), false).unwrap()).collect();
        own.iter().for_each(|place| assert!(place.begin_request()));
        assert!(places.enter(of(10), false).is_none());
        let other = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 1));
        assert!(places.enter(other, false).is_some());
    }
}
