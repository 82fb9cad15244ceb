//! Which fault, when, on whom: all from the seed.

use std::time::Duration;

use fastrand::Rng;
use testbed::faults::{Fault, Kind};

/// A fault and its moment.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    /// How much of its slice of the messages is published before it strikes, in per cent.
    pub(crate) at: usize,
    pub(crate) fault: Fault,
}

/// `count` faults. Kinds are dealt like cards, so that each comes before any comes again.
pub(crate) fn schedule(seed: u64, count: usize, only: &[String]) -> Vec<Planned> {
    let mut random = Rng::with_seed(seed);
    let wanted = |kind: &Kind| only.is_empty() || only.contains(&kind.name());
    let kinds: Vec<Kind> = Kind::all().into_iter().filter(wanted).collect();
    let mut deck: Vec<Kind> = Vec::new();
    let mut planned = Vec::with_capacity(count);
    while planned.len() < count {
        let Some(kind) = deck.pop() else {
            if kinds.is_empty() {
                break;
            }
            deck.clone_from(&kinds);
            random.shuffle(&mut deck);
            continue;
        };
        let (shortest, longest) = kind.holds();
        let span = u64::try_from((longest - shortest).as_millis()).unwrap_or(0);
        let hold = shortest + Duration::from_millis(random.u64(0..=span));
        let fault = Fault { kind, target: random.usize(0..100_000), hold };
        planned.push(Planned { at: random.usize(20..=60), fault });
    }
    planned
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_gives_the_same_faults_again() {
        let of = |seed| -> Vec<String> {
            schedule(seed, 60, &[]).iter().map(|p| format!("{} {}", p.at, p.fault.name())).collect()
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn no_kind_comes_twice_before_each_came_once() {
        let kinds = Kind::all().len();
        let first: BTreeSet<Kind> = schedule(7, kinds, &[]).iter().map(|p| p.fault.kind).collect();
        assert_eq!(first.len(), kinds);
    }
}
