//! Which fault, when, on whom: all from the seed.

use std::time::Duration;

use fastrand::Rng;
use testbed::Server;
use testbed::faults::{Fault, Kind};

/// A fault and its moment.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    /// How much of its slice of the messages is published before it strikes, in per cent.
    pub(crate) at: usize,
    pub(crate) fault: Fault,
    /// Strikes while the first one holds.
    pub(crate) second: Option<Fault>,
    /// Wait after it until all is done that was published; else the next one strikes what this one has left.
    pub(crate) settle: bool,
}

impl Planned {
    /// For reports.
    pub(crate) fn name(&self) -> String {
        match &self.second {
            None => self.fault.name(),
            Some(second) => format!("{} with {}", self.fault.name(), second.name()),
        }
    }
}

/// `count` faults. Kinds are dealt like cards, so that each comes before any comes again; of two packs in turn, so that
/// those of [`Kind::core`] come more often. To one fault in five of a server a second one of a process or the network joins.
pub(crate) fn schedule(seed: u64, count: usize, only: &[String]) -> Vec<Planned> {
    let mut random = Rng::with_seed(seed);
    let wanted = |kind: &Kind| only.is_empty() || only.contains(&kind.name());
    let mut kinds: Vec<Kind> = Kind::all().into_iter().filter(wanted).collect();
    if !only.is_empty() {
        let silent = [Server::Postgres, Server::RabbitMq, Server::Redis].map(Kind::Forget);
        kinds.extend(silent.into_iter().filter(wanted));
    }
    let joining: Vec<Kind> = kinds.iter().copied().filter(|kind| kind.may_join()).collect();
    let core: Vec<Kind> = Kind::core().into_iter().filter(wanted).collect();
    let others: Vec<Kind> = kinds.iter().copied().filter(|kind| !core.contains(kind)).collect();
    let mut packs = [Pack::of(core), Pack::of(others)];
    let mut planned = Vec::with_capacity(count);
    while planned.len() < count {
        let number = planned.len() % 3;
        // Two of the core, one of the others.
        let turn = usize::from(number == 2);
        let Some(kind) = packs[turn].deal(&mut random).or_else(|| packs[1 - turn].deal(&mut random)) else {
            break;
        };
        let fault = fault(kind, &mut random);
        let joins = random.u8(0..5) == 0 && !fault.kind.may_join();
        let second = joins.then(|| random.choice(&joining).copied()).flatten();
        let second = second.map(|kind| self::fault(kind, &mut random));
        planned.push(Planned { at: random.usize(20..=60), fault, second, settle: random.bool() });
    }
    planned
}

fn fault(kind: Kind, random: &mut Rng) -> Fault {
    let (shortest, longest) = kind.holds();
    let span = u64::try_from((longest - shortest).as_millis()).unwrap_or(0);
    let hold = shortest + Duration::from_millis(random.u64(0..=span));
    Fault { kind, target: random.usize(0..100_000), hold }
}

/// Kinds that are dealt until none is left, then shuffled anew.
struct Pack {
    kinds: Vec<Kind>,
    left: Vec<Kind>,
}

impl Pack {
    fn of(kinds: Vec<Kind>) -> Self {
        Self { kinds, left: Vec::new() }
    }

    fn deal(&mut self, random: &mut Rng) -> Option<Kind> {
        if self.left.is_empty() {
            self.left.clone_from(&self.kinds);
            random.shuffle(&mut self.left);
        }
        self.left.pop()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_gives_the_same_faults_again() {
        let of = |seed| -> Vec<String> {
            schedule(seed, 60, &[]).iter().map(|p| format!("{} {}", p.at, p.name())).collect()
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn no_kind_comes_twice_before_each_of_its_pack_came_once() {
        let planned = schedule(7, 36, &[]);
        let core: BTreeSet<Kind> = Kind::core().into_iter().collect();
        let kinds: BTreeSet<Kind> = planned.iter().map(|p| p.fault.kind).collect();
        assert_eq!(kinds.len(), 36);
        assert!(core.is_subset(&kinds));
    }

    #[test]
    fn named_kinds_are_the_only_ones() {
        let only = ["kill_worker".to_owned(), "term_relay".to_owned()];
        let kinds: BTreeSet<String> =
            schedule(7, 20, &only).iter().map(|planned| planned.fault.kind.name()).collect();
        assert_eq!(kinds, only.into());
    }
}
