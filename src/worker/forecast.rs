//! What the last batches say of the next one's keys. Right or wrong, the result is the same; wrong costs a transaction.

use super::prepare::Candidate;

/// What a lane expects of the keys to claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Nobody has any of them.
    Fresh,
    /// Somebody may have some of them.
    Known,
}

/// Most messages of a small batch. What counts for those is the number of round trips; taking messages apart again inside the
/// server costs a large one more than sending keys three times (23.5 against 22.1 microseconds a message in batches of 500).
pub(super) const SMALL: usize = 64;

/// For how many batches after one with a key that was known a lane goes on expecting some; and for how many after those it still
/// asks the mirror about small ones.
const WATCHED: u32 = 64;

/// A lane's experience.
#[derive(Debug)]
pub(crate) struct Forecast {
    /// Batches in a row none of whose keys was known.
    unknown: u32,
    /// The last attempt that expected fresh keys failed, and none has succeeded since: perhaps one was known, and the error did not say
    /// so.
    fresh_failed: bool,
}

impl Default for Forecast {
    /// Nothing is known of a backlog's keys, but a storm of redeliveries may be what is there at the start.
    fn default() -> Self {
        Self { unknown: WATCHED, fresh_failed: false }
    }
}

impl Forecast {
    /// What to expect of these keys.
    pub(super) fn expect(&self, work: &[&Candidate]) -> Expect {
        match self.unknown >= WATCHED && !self.fresh_failed && !has_redelivered(work) {
            true => Expect::Fresh,
            false => Expect::Known,
        }
    }

    /// Is the mirror worth a round trip? Not where a small batch is most likely fresh: PostgreSQL finds out, and the mirror is asked
    /// about the next ones.
    pub(super) fn needs_precheck(&self, work: &[&Candidate]) -> bool {
        work.len() > SMALL || self.unknown < 2 * WATCHED || has_redelivered(work)
    }

    /// A batch is done, and all of its keys were fresh.
    pub(super) fn nobody_knew(&mut self) {
        self.unknown = (self.unknown + 1).min(2 * WATCHED);
        self.fresh_failed = false;
    }

    /// PostgreSQL knew a key.
    pub(super) fn postgres_knew(&mut self) {
        self.unknown = 0;
        self.fresh_failed = false;
    }

    /// An attempt that expected fresh keys failed, with whatever: the same keys are not expected to be fresh again. A cluster may report
    /// a key that is known in words of its own, and its duplicate must not meet the same failure for ever.
    pub(super) fn fresh_failed(&mut self) {
        self.fresh_failed = true;
    }

    /// The mirror knew a key, so it is worth asking; of the others nothing is said.
    pub(super) fn mirror_knew(&mut self) {
        self.unknown = self.unknown.min(WATCHED);
    }
}

/// What was delivered before is the most likely to be known.
fn has_redelivered(work: &[&Candidate]) -> bool {
    work.iter().any(|one| one.delivery.message.redelivered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(fresh_batches: u32) -> Forecast {
        let mut forecast = Forecast::default();
        for _ in 0..fresh_batches {
            forecast.nobody_knew();
        }
        forecast
    }

    #[test]
    fn keys_are_expected_to_be_fresh_until_postgresql_knows_one() {
        let mut forecast = after(3);
        assert_eq!(forecast.expect(&[]), Expect::Fresh);
        forecast.postgres_knew();
        for _ in 0..WATCHED {
            assert_eq!(forecast.expect(&[]), Expect::Known);
            forecast.nobody_knew();
        }
        assert_eq!(forecast.expect(&[]), Expect::Fresh);
    }

    #[test]
    fn what_failed_as_fresh_is_expected_to_be_known_until_something_succeeds() {
        let mut forecast = after(3);
        forecast.fresh_failed();
        assert_eq!(forecast.expect(&[]), Expect::Known);
        assert_eq!(forecast.expect(&[]), Expect::Known, "again and again");
        forecast.nobody_knew();
        assert_eq!(forecast.expect(&[]), Expect::Fresh, "it was not the keys");
        forecast.fresh_failed();
        forecast.postgres_knew();
        assert_eq!(forecast.expect(&[]), Expect::Known, "it was the keys");
    }

    #[test]
    fn the_mirror_is_asked_until_nothing_was_known_for_a_while() {
        assert!(after(WATCHED - 1).needs_precheck(&[]));
        let mut forecast = after(WATCHED);
        assert!(!forecast.needs_precheck(&[]));
        forecast.mirror_knew();
        assert!(forecast.needs_precheck(&[]));
        assert_eq!(forecast.expect(&[]), Expect::Fresh, "of the others the mirror says nothing");
        let mut forecast = after(1_000 * WATCHED);
        forecast.postgres_knew();
        assert!(forecast.needs_precheck(&[]));
    }
}
