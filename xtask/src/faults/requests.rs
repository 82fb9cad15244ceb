//! Which messages come over HTTP, too, or there alone, and what strikes the servers that take them. All from the seed.

use std::time::Duration;

use fastrand::Rng;
use testbed::Strike;
use testbed::checker::{Act, Intent, Order};

/// Of the work, what comes as a request, in per cent.
const SHARE: u8 = 15;
/// One in so many of these comes as a request alone.
const ALONE: u8 = 3;

/// An endless choice, the same for the same seed.
#[derive(Debug)]
pub(crate) struct Requests {
    random: Rng,
    struck: usize,
}

impl Requests {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: Rng::with_seed(seed ^ 0x7265_7175_6573), struck: 0 }
    }

    /// What of these comes as a request, and what as a message. Copies are drawn anew, so that a request comes again as a message, and a
    /// message as a request.
    pub(crate) fn split(&mut self, intents: Vec<Intent>) -> (Vec<Intent>, Vec<Intent>) {
        // What fails would be another failure over HTTP: nothing is stored, and no dead letter written.
        self.split_those(intents, |intent| intent.act == Act::Work)
    }

    /// The same of orders.
    pub(crate) fn split_orders(&mut self, orders: Vec<Order>) -> (Vec<Order>, Vec<Order>) {
        self.split_those(orders, |_| true)
    }

    fn split_those<T: Clone>(&mut self, all: Vec<T>, may: impl Fn(&T) -> bool) -> (Vec<T>, Vec<T>) {
        let (mut requests, mut messages) = (Vec::new(), Vec::new());
        for one in all {
            if may(&one) && self.random.u8(0..100) < SHARE {
                requests.push(one.clone());
                if self.random.u8(0..ALONE) == 0 {
                    continue;
                }
            }
            messages.push(one);
        }
        (requests, messages)
    }

    /// Of a slice: in turn a server is killed, stands still, ends in order, or loses its connections.
    pub(crate) fn strike(&mut self) -> Strike {
        let number = self.random.usize(0..2);
        self.struck += 1;
        match self.struck % 4 {
            1 => Strike::Kill(number),
            // Longer than a client waits.
            2 => Strike::Freeze(number, Duration::from_millis(self.random.u64(3_500..6_000))),
            3 => Strike::Cut(number),
            _ => Strike::Stop(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Traffic;

    #[test]
    fn a_seed_gives_the_same_requests_again_and_loses_none() {
        let of = |seed| {
            let intents = Traffic::new(7).take(1_000);
            let (requests, messages) = Requests::new(seed).split(intents.clone());
            let both =
                requests.iter().filter(|one| messages.iter().any(|other| other.body == one.body)).count();
            assert!(both > 0 && both < requests.len());
            for intent in intents {
                assert!(requests.iter().chain(&messages).any(|one| one.body == intent.body));
            }
            requests.into_iter().map(|intent| intent.key).collect::<Vec<_>>()
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
