//! What runs under leases meanwhile: messages that call a provider, and what strikes the processes that run them. All from the seed.

use std::time::Duration;

use fastrand::Rng;
use testbed::Strike;
use testbed::checker::{Order, Side};

/// An endless stream, the same for the same seed.
#[derive(Debug)]
pub(crate) struct Orders {
    random: Rng,
    /// What may come again.
    before: Vec<Order>,
    struck: usize,
}

/// At least so many in a slice: a strike must meet some.
const LEAST: usize = 24;
/// At most: they go on while a slice does.
const MOST: usize = 60;
/// Copies of earlier ones, in per cent.
const COPIES: u8 = 15;
/// One in so many takes long.
const LONG: u8 = 24;
/// Of those that come again.
const RECENT: usize = 40;

impl Orders {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: Rng::with_seed(seed ^ 0x6f72_6465_7273), before: Vec::new(), struck: 0 }
    }

    pub(crate) fn take(&mut self, count: usize) -> Vec<Order> {
        (0..count.clamp(LEAST, MOST)).map(|_| self.next()).collect()
    }

    fn next(&mut self) -> Order {
        if !self.before.is_empty() && self.random.u8(0..100) < COPIES {
            let from = self.before.len().saturating_sub(RECENT);
            return self.before[self.random.usize(from..self.before.len())].clone();
        }
        let mut sides = Side::ALL;
        self.random.shuffle(&mut sides);
        let order = Order {
            tenant: format!("tenant-{:02}", self.random.u8(0..20)),
            key: format!("order-{:06}", self.before.len()),
            sides: sides[..self.random.usize(1..=3)].to_vec(),
            tears: [0, 0, 0, 0, 0, 0, 1, 1, 1, 2][self.random.usize(0..10)],
            refusals: u32::from(self.random.u8(0..8) == 0),
            delay: self.random.u64(200..2_000),
        };
        // Some take longer than a lease, and than most outages.
        let order = match self.random.u8(0..LONG) {
            0 => Order { sides: order.sides[..1].to_vec(), delay: self.random.u64(6_000..11_000), ..order },
            _ => order,
        };
        self.before.push(order.clone());
        order
    }

    /// Of a slice: in turn a process is killed or stands still, and now and then the other one ends in order or loses its connections.
    pub(crate) fn strikes(&mut self) -> Vec<Strike> {
        let number = self.random.usize(0..2);
        // Longer than a lease, and than the broker waits for a heartbeat.
        let hold = Duration::from_millis(self.random.u64(7_500..10_000));
        self.struck += 1;
        let mut strikes = match self.struck % 2 {
            0 => vec![Strike::Freeze(number, hold)],
            _ => vec![Strike::Kill(number)],
        };
        match self.random.u8(0..6) {
            0 => strikes.push(Strike::Stop(1 - number)),
            1 => strikes.push(Strike::Cut(1 - number)),
            _ => {}
        }
        strikes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_orders_and_strikes_again() {
        let of = |seed| {
            let mut orders = Orders::new(seed);
            let bodies: Vec<Vec<u8>> = orders.take(50).iter().map(|order| order.intent().body).collect();
            let strikes: Vec<String> = (0..9).map(|_| format!("{:?}", orders.strikes())).collect();
            (bodies, strikes)
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
