//! Work that succeeds beside what fails. A message that fails is charged with it only where another one of its consumer succeeds meanwhile, so
//! the last ones of a trial would wait for ever.

use std::time::{Duration, Instant};

use super::Arena;
use crate::checker::{Act, Intent, Order, WITNESS};

/// From some to the next.
const PAUSE: Duration = Duration::from_secs(1);

/// What was published of it.
#[derive(Debug, Default)]
pub(super) struct Witnesses {
    count: usize,
    last: Option<Instant>,
}

impl Arena {
    /// Publishes some work for each process of each consumer, at most once a second, where nothing else is about to be published.
    pub(super) fn publish_witnesses(&mut self) {
        if self.config.plain || self.witnesses.last.is_some_and(|last| last.elapsed() < PAUSE) {
            return;
        }
        self.witnesses.last = Some(Instant::now());
        let first = self.witnesses.count;
        let all = first..first + 2 * self.workers.len();
        self.witnesses.count = all.end;
        let key = |number| format!("{WITNESS}-{number}");
        if self.publisher.pending() == 0 {
            self.publish(
                all.clone().map(|number| Intent::new(WITNESS, &key(number), Act::Work, 0)).collect(),
            );
        }
        if !self.is_ordering() {
            let order = |number| Order {
                tenant: WITNESS.to_owned(),
                key: key(number),
                sides: Vec::new(),
                tears: 0,
                refusals: 0,
                delay: 0,
            };
            self.order(&all.map(order).collect::<Vec<_>>());
        }
    }
}
