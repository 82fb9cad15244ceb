//! Limits of connections: in total and per address, and the choice of the connection that is displaced.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio_util::sync::CancellationToken;

/// Limiter of connections.
pub(super) struct ConnectionLimiter {
    max_connections: usize,
    table: Mutex<ConnectionTable>,
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
    displacement: CancellationToken,
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
    pub(super) fn new(max_connections: usize) -> Arc<Self> {
        Arc::new(Self { max_connections, table: Mutex::default() })
    }

    /// Takes a permit for a connection from this address; `None` if the limit is reached and no connection can be displaced. `is_shared`:
    /// the address is a proxy's, with many clients.
    ///
    /// One address has nine tenths of all connections at most; at that limit a new connection displaces the longest idle one of its
    /// address. At the limit of all connections it displaces the longest idle one of the address with the most connections. A connection
    /// that receives a body counts as idle if its address has more connections than the new one's address will have. A complete request is
    /// never aborted.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr, is_shared: bool) -> Option<Arc<ConnectionPermit>> {
        let address = network(address);
        let mut table = self.lock();
        let own = table.count(address);
        let share =
            if is_shared { self.max_connections } else { self.max_connections - self.max_connections / 10 };
        if own >= share || table.connections.len() >= self.max_connections {
            let is_full = own < share;
            let is_displaceable = |connection: &Connection| match connection.phase {
                ConnectionPhase::Idle => is_full || connection.address == address,
                ConnectionPhase::Arriving => is_full && table.count(connection.address) > own + 1,
                ConnectionPhase::Working | ConnectionPhase::Answered => false,
            };
            let candidate =
                table.connections.iter().filter(|(_, connection)| is_displaceable(connection)).max_by_key(
                    |(_, connection)| {
                        (
                            table.count(connection.address),
                            connection.phase == ConnectionPhase::Idle,
                            Reverse(connection.since),
                        )
                    },
                );
            let number = *candidate?.0;
            table.remove(number);
        }
        let number = table.next;
        table.next += 1;
        *table.counts.entry(address).or_default() += 1;
        let displacement = CancellationToken::new();
        let connection = Connection {
            address,
            phase: ConnectionPhase::Idle,
            since: Instant::now(),
            displacement: displacement.clone(),
        };
        table.connections.insert(number, connection);
        drop(table);
        Some(Arc::new(ConnectionPermit {
            limiter: Arc::clone(self),
            number,
            request: AtomicU64::new(0),
            displacement,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        // Every change leaves it consistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionTable {
    fn count(&self, address: IpAddr) -> usize {
        self.counts.get(&address).copied().unwrap_or(0)
    }

    /// Removes a connection and signals that to it; does nothing if it was removed before.
    fn remove(&mut self, number: u64) {
        let Some(connection) = self.connections.remove(&number) else { return };
        connection.displacement.cancel();
        if let Some(count) = self.counts.get_mut(&connection.address) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&connection.address);
            }
        }
    }
}

/// Permit of one connection, until it is dropped.
pub(super) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    number: u64,
    /// Number of the last request that has begun.
    request: AtomicU64,
    displacement: CancellationToken,
}

impl ConnectionPermit {
    /// Waits until another connection displaces the one of this permit.
    pub(super) async fn wait_until_lost(&self) {
        self.displacement.cancelled().await;
    }

    /// Marks the headers of a request as received; returns false if the connection was displaced, so that the request must
    /// not begin.
    pub(super) fn begin_request(&self) -> bool {
        self.request.fetch_add(1, Ordering::Relaxed);
        self.set_phase(ConnectionPhase::Arriving, |_| true)
    }

    /// Returns the number of the last request that has begun.
    pub(super) fn request(&self) -> u64 {
        self.request.load(Ordering::Relaxed)
    }

    /// Marks the body of this request as received or abandoned: the connection is not displaced until its answer is finished. Does nothing
    /// if the body has ended before, or another request has begun: the service may answer before it has read a body, and the client goes on.
    pub(super) fn finish_body(&self, request: u64) {
        self.set_phase(ConnectionPhase::Working, |phase| {
            phase == ConnectionPhase::Arriving && request == self.request()
        });
    }

    /// Marks the answer as finished: the connection is idle once it is written.
    pub(super) fn finish_answer(&self) {
        self.set_phase(ConnectionPhase::Answered, |_| true);
    }

    /// Marks the finished answers as written to the socket. Does nothing while an answer is not finished.
    pub(super) fn mark_written(&self) {
        self.set_phase(ConnectionPhase::Idle, |phase| phase == ConnectionPhase::Answered);
    }

    /// Sets the phase of the connection if its present one satisfies `from`. Returns false if the connection was
    /// displaced.
    fn set_phase(&self, phase: ConnectionPhase, from: impl FnOnce(ConnectionPhase) -> bool) -> bool {
        let mut table = self.limiter.lock();
        let Some(connection) = table.connections.get_mut(&self.number) else { return false };
        if from(connection.phase) {
            (connection.phase, connection.since) = (phase, Instant::now());
        }
        true
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limiter.lock().remove(self.number);
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

    fn is_lost(permit: &ConnectionPermit) -> bool {
        permit.displacement.is_cancelled()
    }

    #[test]
    fn the_one_that_is_idle_longest_makes_room_and_no_whole_request_does() {
        let limiter = ConnectionLimiter::new(3);
        let [first, second, third] = [1, 2, 3].map(|last| limiter.enter(address(last), false).unwrap());
        assert!(first.begin_request());
        first.finish_body(first.request());
        let fourth = limiter.enter(address(4), false).unwrap();
        assert!(is_lost(&second) && !is_lost(&first) && !is_lost(&third));
        assert!(!second.begin_request(), "nothing begins on a place that is lost");
        for permit in [&third, &fourth] {
            assert!(permit.begin_request());
        }
        assert!(
            limiter.enter(address(5), false).is_none(),
            "a body on its way, of an address that has no more than the newcomer"
        );
        first.finish_answer();
        assert!(limiter.enter(address(5), false).is_none(), "its answer may be cut off");
        first.mark_written();
        assert!(limiter.enter(address(5), false).is_some() && is_lost(&first));
        drop((third, fourth));
        assert!(limiter.enter(address(5), false).is_some());
    }

    #[test]
    fn a_body_that_ends_late_is_not_that_of_the_next_request() {
        let limiter = ConnectionLimiter::new(1);
        let permit = limiter.enter(address(1), false).unwrap();
        assert!(permit.begin_request());
        let first = permit.request();
        permit.finish_answer();
        assert!(permit.begin_request());
        permit.finish_body(first);
        let is_arriving = |permit: &ConnectionPermit| {
            limiter.lock().connections[&permit.number].phase == ConnectionPhase::Arriving
        };
        assert!(is_arriving(&permit));
        permit.finish_body(permit.request());
        assert!(!is_arriving(&permit));
    }

    #[test]
    fn one_address_keeps_no_other_one_out() {
        let limiter = ConnectionLimiter::new(10);
        let greedy: Vec<_> = (0..9).map(|_| limiter.enter(address(1), false).unwrap()).collect();
        for permit in &greedy {
            permit.begin_request();
        }
        assert!(limiter.enter(address(1), false).is_none(), "nine tenths");
        let mut others = Vec::new();
        for last in 2..6 {
            others.push(limiter.enter(address(last), false).unwrap());
            others.last().unwrap().begin_request();
            let permit = others.last().unwrap();
            permit.finish_body(permit.request());
        }
        // The first connection had the last place; the others had places of bodies that were arriving.
        assert_eq!(greedy.iter().filter(|permit| is_lost(permit)).count(), 3);
        assert!(is_lost(&greedy[0]) && is_lost(&greedy[2]) && !is_lost(&greedy[3]), "the oldest");
        assert!(others.iter().all(|permit| !is_lost(permit)));
        // The address's idle connections make room for its new ones.
        greedy[5].finish_answer();
        greedy[5].mark_written();
        assert!(limiter.enter(address(1), false).is_some() && is_lost(&greedy[5]));
    }

    #[test]
    fn behind_a_proxy_are_many_and_a_network_is_one() {
        let limiter = ConnectionLimiter::new(10);
        let proxied: Vec<_> = (0..10).map(|_| limiter.enter(address(1), true)).collect();
        assert!(proxied.iter().all(Option::is_some));
        let limiter = ConnectionLimiter::new(10);
        let of = |last: u16| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last));
        let own: Vec<_> = (0..9).map(|last| limiter.enter(of(last), false).unwrap()).collect();
        own.iter().for_each(|permit| assert!(permit.begin_request()));
        assert!(limiter.enter(of(10), false).is_none());
        let other = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 1));
        assert!(limiter.enter(other, false).is_some());
    }
}
