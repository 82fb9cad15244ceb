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
}

impl Default for Forecast {
    /// Nothing is known of a backlog's keys, but a storm of redeliveries may be what is there at the start.
    fn default() -> Self {
        Self { unknown: WATCHED }
    }
}

impl Forecast {
    /// What to expect of these keys.
    pub(super) fn expect(&self, work: &[&Candidate]) -> Expect {
        match self.unknown >= WATCHED && !has_redelivered(work) {
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
    }

    /// PostgreSQL knew a key.
    pub(super) fn postgres_knew(&mut self) {
        self.unknown = 0;
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
