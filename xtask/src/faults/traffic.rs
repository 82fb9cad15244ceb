//! What is published: mostly work, a fifth of it duplicates, some of it wrong in every way.

use fastrand::Rng;
use testbed::checker::{Act, Intent};

/// An endless stream, the same for the same seed.
#[derive(Debug)]
pub(crate) struct Traffic {
    random: Rng,
    /// All distinct messages so far: what may come again.
    before: Vec<Intent>,
    keys: u32,
}

/// Duplicates in per cent.
const DUPLICATES: u8 = 20;
/// Among the rest, in per mille.
const ACTS: [(u16, Act); 5] =
    [(10, Act::Reject), (10, Act::Divide), (10, Act::Fail), (10, Act::FailOnce), (4, Act::Slow)];
/// The same key with another payload, in per mille.
const CONFLICTS: u16 = 20;
/// Most duplicates come soon.
const RECENT: usize = 500;

impl Traffic {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: Rng::with_seed(seed ^ 0x7261_6666_6963), before: Vec::new(), keys: 0 }
    }

    pub(crate) fn take(&mut self, count: usize) -> Vec<Intent> {
        (0..count).map(|_| self.next()).collect()
    }

    /// A part that is published after a fault: how many of its messages must take effect and have not come before.
    pub(crate) fn take_tail(&mut self, count: usize) -> (Vec<Intent>, u64) {
        let seen = key(self.keys);
        let mut tail = self.take(count);
        // A small one may hold nothing but duplicates.
        for _ in 0..3 {
            tail.push(self.work(Act::Work));
        }
        let fresh: std::collections::BTreeSet<&str> = tail
            .iter()
            .filter(|intent| intent.act == Act::Work && intent.key > seen)
            .map(|intent| intent.key.as_str())
            .collect();
        let fresh = fresh.len() as u64;
        (tail, fresh)
    }

    fn work(&mut self, act: Act) -> Intent {
        self.keys += 1;
        let tenant = format!("tenant-{:02}", self.random.u8(0..20));
        let intent = Intent::new(&tenant, &key(self.keys), act, 0);
        self.before.push(intent.clone());
        intent
    }

    fn next(&mut self) -> Intent {
        if !self.before.is_empty() {
            if self.random.u8(0..100) < DUPLICATES {
                return self.earlier();
            }
            if self.random.u16(0..1_000) < CONFLICTS {
                let Intent { tenant, key, act, .. } = self.earlier();
                // Only of what would take effect: who comes first takes effect, the other is a conflict.
                if act == Act::Work {
                    let other = Intent::new(&tenant, &key, Act::Work, self.random.u32(1..4));
                    self.before.push(other.clone());
                    return other;
                }
            }
        }
        let mut number = self.random.u16(0..1_000);
        let mut act = Act::Work;
        for (share, other) in ACTS {
            if number < share {
                act = other;
                break;
            }
            number -= share;
        }
        self.work(act)
    }

    fn earlier(&mut self) -> Intent {
        let all = self.before.len();
        let from = if self.random.u8(0..5) == 0 { 0 } else { all.saturating_sub(RECENT) };
        self.before[self.random.usize(from..all)].clone()
    }
}

fn key(number: u32) -> String {
    format!("key-{number:08}")
}
