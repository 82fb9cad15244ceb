//! What is published: mostly work, a fifth of it duplicates, some of it wrong in every way.

use fastrand::Rng;
use testbed::checker::{Act, Beside, Intent, SHOPS};

/// An endless stream, the same for the same seed.
#[derive(Debug)]
pub(crate) struct Traffic {
    random: Rng,
    /// All distinct messages so far: what may come again.
    before: Vec<Intent>,
    /// How many of them there were at the end of each day.
    days: Vec<usize>,
    keys: u32,
    /// So many messages of shops come next.
    burst: u32,
}

/// Duplicates in per cent.
const DUPLICATES: u8 = 20;
/// Among the rest, in per mille.
const ACTS: [(u16, Act); 11] = [
    (10, Act::Reject),
    (5, Act::Divide),
    (10, Act::Fail),
    (10, Act::FailOnce),
    (4, Act::Slow),
    (5, Act::NoNumber),
    (3, Act::AtCommit),
    (3, Act::NoTable),
    (2, Act::NoSchema),
    (2, Act::NoSyntax),
    (5, Act::Serialize),
];
/// Work that does something beside its effect, in per mille of all work.
const BESIDE: u16 = 60;
/// Messages of tenants that have a schema of their own, in per cent.
const BRANCHES: u8 = 12;
/// A copy may come so many days later: well within the retention, and what waits in the queue meanwhile.
const REMEMBERED: usize = 3;
/// The same key with another payload, in per mille.
const CONFLICTS: u16 = 20;
/// A burst of messages of shops begins, in per mille, and how many it has.
const BURSTS: u16 = 2;
const BURST: std::ops::Range<u32> = 40..150;
/// Rows that shops update.
const STOCK: u8 = 15;
/// Most duplicates come soon.
const RECENT: usize = 500;

impl Traffic {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Rng::with_seed(seed ^ 0x7261_6666_6963),
            before: Vec::new(),
            days: Vec::new(),
            keys: 0,
            burst: 0,
        }
    }

    /// A day has gone by: what is too old does not come again.
    pub(crate) fn end_of_day(&mut self) {
        self.days.push(self.before.len());
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
        let mut tenant = format!("tenant-{:02}", self.random.u8(0..20));
        let mut act = act;
        if act == Act::Work && self.random.u8(0..100) < BRANCHES {
            tenant = format!("branch_{}", self.random.u8(0..5));
            act = Act::Branch;
        }
        let mut intent = Intent::new(&tenant, &key(self.keys), act, 0);
        if act == Act::Work && self.random.u16(0..1_000) < BESIDE {
            intent = intent.beside(self.beside());
        }
        self.before.push(intent.clone());
        intent
    }

    fn beside(&mut self) -> Beside {
        match self.random.u8(0..12) {
            0..5 => Beside::Hot(self.random.u8(0..16), self.random.u8(0..16)),
            5..9 => Beside::Stream(self.random.u8(0..40)),
            9..11 => Beside::Deferred,
            _ => Beside::Temporary,
        }
    }

    /// A sale: of few rows one is updated, or two in any order, and six in ten are refused.
    fn sale(&mut self) -> Intent {
        self.keys += 1;
        let act = match self.random.u8(0..10) {
            0..5 => Act::Refuse,
            5 => Act::Reject,
            _ => Act::Work,
        };
        let first = self.random.u8(0..STOCK);
        let second = if self.random.u8(0..3) == 0 { self.random.u8(0..STOCK) } else { first };
        let tenant = SHOPS[self.random.usize(0..SHOPS.len())];
        let intent = Intent::new(tenant, &key(self.keys), act, 0).beside(Beside::Hot(first, second));
        self.before.push(intent.clone());
        intent
    }

    fn next(&mut self) -> Intent {
        if self.burst > 0 {
            self.burst -= 1;
            return self.sale();
        }
        if self.random.u16(0..1_000) < BURSTS {
            self.burst = self.random.u32(BURST);
        }
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
        let day = self.days.len().checked_sub(REMEMBERED).and_then(|day| self.days.get(day));
        // Nothing may have come since.
        let oldest = day.copied().unwrap_or(0).min(all.saturating_sub(1));
        let recent = all.saturating_sub(RECENT).max(oldest);
        let from = if self.random.u8(0..5) == 0 { oldest } else { recent };
        self.before[self.random.usize(from..all)].clone()
    }
}

fn key(number: u32) -> String {
    format!("key-{number:08}")
}
