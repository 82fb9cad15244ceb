//! Settled deliveries of a channel, and the fewest acknowledgements for them.

use std::collections::VecDeque;

/// The delivery tags of one channel, in the order of delivery.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settlement {
    /// Outstanding deliveries from the oldest unacknowledged one on: tag, and whether it is settled.
    outstanding: VecDeque<(u64, bool)>,
    /// Number of settled ones in `outstanding`, held back behind an unsettled one.
    held_count: usize,
    /// Number of deliveries that the broker sends without acknowledgement.
    prefetch: usize,
    /// Oldest outstanding delivery at the last call of [`Settlement::release_where_stuck`].
    last_oldest: Option<u64>,
}

/// An acknowledgement to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// This tag and all before it.
    UpTo(u64),
    /// This tag alone.
    One(u64),
}

impl Settlement {
    /// Creates the settlement of a channel with this prefetch.
    #[must_use]
    pub fn new(prefetch: u16) -> Self {
        Self {
            outstanding: VecDeque::new(),
            held_count: 0,
            prefetch: usize::from(prefetch),
            last_oldest: None,
        }
    }

    /// Adds a delivery. Tags of a channel only increase.
    pub fn add_delivery(&mut self, tag: u64) {
        self.outstanding.push_back((tag, false));
    }

    /// Returns the number of unacknowledged deliveries, including settled ones that are held back.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        self.outstanding.len()
    }

    /// Marks deliveries as settled. A tag that is not outstanding is ignored: acknowledging twice would close the channel.
    pub fn mark(&mut self, tags: impl IntoIterator<Item = u64>) {
        for tag in tags {
            if let Ok(index) = self.outstanding.binary_search_by_key(&tag, |(tag, _)| *tag)
                && !std::mem::replace(&mut self.outstanding[index].1, true)
            {
                self.held_count += 1;
            }
        }
    }

    /// Takes out the acknowledgements to send now, for all deliveries that are marked.
    pub fn take_acks(&mut self) -> Vec<Ack> {
        let mut acks = Vec::new();
        let mut last = None;
        while let Some((tag, true)) = self.outstanding.front().copied() {
            self.outstanding.pop_front();
            self.held_count -= 1;
            last = Some(tag);
        }
        acks.extend(last.map(Ack::UpTo));
        // Single acknowledgements are expensive (one costs the broker as much as two deliveries); holding back half of the prefetch costs more.
        if self.held_count >= (self.prefetch / 2).max(1) {
            acks.extend(self.release());
        }
        acks
    }

    /// Takes out all acknowledgements that are held back, if the broker delivers nothing before it gets one, and the oldest delivery has
    /// been at work since the last call; otherwise none. To be called at intervals.
    pub fn release_where_stuck(&mut self) -> Vec<Ack> {
        let oldest = self.outstanding.front().map(|(tag, _)| *tag);
        let is_unchanged = std::mem::replace(&mut self.last_oldest, oldest) == oldest;
        match is_unchanged && self.outstanding.len() >= self.prefetch {
            true => self.release(),
            false => Vec::new(),
        }
    }

    /// Takes out all acknowledgements that are held back.
    pub fn release(&mut self) -> Vec<Ack> {
        self.held_count = 0;
        let mut acks = Vec::new();
        self.outstanding.retain(|(tag, is_settled)| {
            if *is_settled {
                acks.push(Ack::One(*tag));
            }
            !is_settled
        });
        acks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Settlement {
        fn settle(&mut self, tags: impl IntoIterator<Item = u64>) -> Vec<Ack> {
            self.mark(tags);
            self.take_acks()
        }
    }

    fn settlement(prefetch: u16, tags: u64) -> Settlement {
        let mut settlement = Settlement::new(prefetch);
        (1..=tags).for_each(|tag| settlement.add_delivery(tag));
        settlement
    }

    #[test]
    fn a_settled_prefix_is_one_acknowledgement() {
        let mut s = settlement(100, 10);
        assert_eq!(s.settle([1, 2, 3]), [Ack::UpTo(3)]);
        assert_eq!(s.settle([4]), [Ack::UpTo(4)]);
    }

    #[test]
    fn a_hole_holds_back_what_comes_after_it() {
        let mut s = settlement(100, 10);
        assert_eq!(s.settle([2, 3]), []);
        assert_eq!(s.settle([1]), [Ack::UpTo(3)]);
    }

    #[test]
    fn half_a_prefetch_held_back_is_released_one_by_one() {
        let mut s = settlement(6, 6);
        assert_eq!(s.settle([2, 4]), []);
        assert_eq!(s.settle([5]), [Ack::One(2), Ack::One(4), Ack::One(5)]);
        assert_eq!(s.settle([1, 3]), [Ack::UpTo(3)]);
    }

    #[test]
    fn a_full_prefetch_is_released_where_its_oldest_delivery_stays_at_work() {
        let mut s = settlement(10, 9);
        assert_eq!(s.settle([7, 8, 9]), []);
        assert_eq!(s.release_where_stuck(), []);
        assert_eq!(s.release_where_stuck(), [], "the broker may deliver one more");
        s.add_delivery(10);
        assert_eq!(s.settle([1, 10]), [Ack::UpTo(1)]);
        s.add_delivery(11);
        assert_eq!(s.release_where_stuck(), [], "the oldest one has changed");
        assert_eq!(s.release_where_stuck(), [Ack::One(7), Ack::One(8), Ack::One(9), Ack::One(10)]);
        assert_eq!(s.unacknowledged(), 6);
    }

    #[test]
    fn a_tag_is_acknowledged_once_however_often_it_is_settled() {
        let mut s = settlement(100, 3);
        assert_eq!(s.settle([1, 1]), [Ack::UpTo(1)]);
        assert_eq!(s.settle([1, 99]), []);
        assert_eq!(s.settle([3, 3]), []);
        assert_eq!(s.release(), [Ack::One(3)]);
        assert_eq!(s.settle([3, 2]), [Ack::UpTo(2)]);
    }

    proptest! {
        /// In any order, an acknowledgement covers settled tags only, each exactly once.
        #[test]
        fn acknowledgements_cover_exactly_what_is_settled(
            order in Just((1..=40_u64).collect::<Vec<_>>()).prop_shuffle(),
            prefetch in 1..80_u16,
        ) {
            let mut s = settlement(prefetch, 40);
            let mut settled = std::collections::BTreeSet::new();
            let mut acked = std::collections::BTreeSet::new();
            for tag in order {
                settled.insert(tag);
                for ack in s.settle([tag]) {
                    let covered: Vec<u64> = match ack {
                        Ack::One(tag) => vec![tag],
                        Ack::UpTo(tag) => (1..=tag).filter(|tag| !acked.contains(tag)).collect(),
                    };
                    for tag in covered {
                        prop_assert!(settled.contains(&tag), "acknowledged before it was settled: {tag}");
                        prop_assert!(acked.insert(tag), "acknowledged twice: {tag}");
                    }
                }
            }
            prop_assert_eq!(acked.len(), 40);
        }
    }
}
