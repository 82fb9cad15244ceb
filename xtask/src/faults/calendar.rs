//! What goes on beside the faults, day by day: all from the seed.

use fastrand::Rng;
use testbed::{Change, Errand, Missing};

/// Days that go by after a slice. A copy comes up to three days later (traffic.rs) and may wait in its queue meanwhile, and its key may be
/// older by five: with three days at once it came after ten, when the key was forgotten, and ran again, rightly.
const AT_ONCE: u32 = 1;
/// Slices from one change to the next.
const CHANGE: usize = 6;
/// Slices from one errand of an operator to the next.
const ERRAND: usize = 2;
/// Slices from one rest to the next, and from one message that workers die with twice to the next.
const REST: usize = 5;
const TWICE: usize = 6;
/// A tenant's schema is missing for three slices of seven.
const MISSING: (usize, usize) = (7, 3);

/// What happens after a slice.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Day {
    /// So many days go by.
    pub(crate) days: u32,
    pub(crate) change: Option<Change>,
    pub(crate) errand: Option<Errand>,
    /// Nothing is published for a while.
    pub(crate) rests: bool,
    /// Workers die twice with the same message.
    pub(crate) twice: bool,
    /// A tenant loses something.
    pub(crate) take: Option<Missing>,
    /// It gets it back.
    pub(crate) give: Option<Missing>,
}

/// For each of `count` slices what happens after it. `builds`: there is another build to change to.
pub(crate) fn calendar(seed: u64, count: usize, builds: bool) -> Vec<Day> {
    let mut random = Rng::with_seed(seed ^ 0x6461_7973);
    let mut changes = Dealer::default();
    let mut errands = Vec::new();
    let mut missing: Option<Missing> = None;
    (0..count)
        .map(|slice| {
            let mut day = Day { days: AT_ONCE, ..Day::default() };
            day.rests = slice % REST == 3;
            day.twice = slice % TWICE == 4;
            if slice % CHANGE == 2 {
                day.change = Some(changes.deal(&mut random, builds));
            }
            if slice % ERRAND == 1 {
                if errands.is_empty() {
                    errands = self::errands(&mut random);
                }
                day.errand = errands.pop();
            }
            if slice % MISSING.0 == 1 {
                missing = Some(Missing { tenant: random.usize(0..2), what: random.usize(0..3) });
                day.take = missing;
            } else if slice % MISSING.0 == 1 + MISSING.1 || slice + 1 == count {
                day.give = missing.take();
            }
            day
        })
        .collect()
}

/// Each kind before any comes again.
fn errands(random: &mut Rng) -> Vec<Errand> {
    let mut all = vec![
        Errand::Requeue,
        Errand::RequeueBrokenOff(random.u64(20..400)),
        Errand::Discard,
        Errand::Sweep,
        Errand::CollectWithAnotherFile,
        Errand::Settle,
        Errand::Erase { deletes_trail: random.bool() },
    ];
    random.shuffle(&mut all);
    all
}

/// Changes, each kind before any comes again.
#[derive(Default)]
struct Dealer {
    left: Vec<Change>,
    ladder: usize,
    policy: usize,
    days: u32,
}

impl Dealer {
    fn deal(&mut self, random: &mut Rng, builds: bool) -> Change {
        if self.left.is_empty() {
            self.ladder += 1;
            self.policy += 1;
            self.days += 2;
            self.left = vec![
                Change::Fingerprint(["body", "canonical_json"][self.policy % 2]),
                Change::Retention(10 + self.days),
                Change::Retry(self.ladder),
                Change::Size(random.u32(8..120), random.u32(1..4)),
                Change::Handler,
                Change::Table,
                Change::Topology,
            ];
            if builds {
                self.left.extend([Change::Build(0), Change::Build(1)]);
            }
            random.shuffle(&mut self.left);
        }
        self.left.pop().unwrap_or(Change::Handler)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_away_is_given_back() {
        for count in [2, 5, 24, 60] {
            let days = calendar(3, count, true);
            let taken: Vec<Missing> = days.iter().filter_map(|day| day.take).collect();
            let given: Vec<Missing> = days.iter().filter_map(|day| day.give).collect();
            assert!(taken == given || (count == 2 && given.is_empty()), "{count}: {taken:?} {given:?}");
        }
    }

    #[test]
    fn a_usual_run_has_changes_enough() {
        assert!(calendar(1, 60, false).iter().filter(|day| day.change.is_some()).count() >= 5);
    }
}
