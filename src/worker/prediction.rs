//! What the last batches say of the next one's keys. If it is wrong, the batch costs one more transaction.

use super::candidate::Candidate;

/// What a lane expects of the keys that it claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedKeys {
    /// Nobody has any of them.
    Fresh,
    /// Somebody may have some of them.
    Known,
}

/// Most messages of a small batch. What counts for those is the number of round trips; taking messages apart again inside the
/// server costs a large one more than sending keys three times (23.5 against 22.1 microseconds a message in batches of 500).
pub(crate) const SMALL: usize = 64;

/// For how many batches after one with a key that was known a lane goes on expecting some; and for how many after those it still
/// asks the mirror about small ones.
const WATCHED: u32 = 64;

/// A lane's experience.
#[derive(Debug)]
pub(crate) struct KeyPrediction {
    /// Batches in a row none of whose keys was known.
    unknown: u32,
    /// The last attempt that expected fresh keys failed, and none has succeeded since: perhaps one was known, and the error did not say
    /// so.
    fresh_failed: bool,
}

impl Default for KeyPrediction {
    /// Nothing is known of a backlog's keys, but a storm of redeliveries may be what is there at the start.
    fn default() -> Self {
        Self { unknown: WATCHED, fresh_failed: false }
    }
}

impl KeyPrediction {
    /// What to expect of these keys.
    pub(crate) fn expect(&self, work: &[&Candidate]) -> ExpectedKeys {
        match self.unknown >= WATCHED && !self.fresh_failed && !has_redelivered(work) {
            true => ExpectedKeys::Fresh,
            false => ExpectedKeys::Known,
        }
    }

    /// Is the mirror worth a round trip? Not where a small batch is most likely fresh: PostgreSQL finds out, and the mirror is asked
    /// about the next ones.
    pub(crate) fn needs_precheck(&self, work: &[&Candidate]) -> bool {
        work.len() > SMALL || self.unknown < 2 * WATCHED || has_redelivered(work)
    }

    /// A batch is done, and all of its keys were fresh.
    pub(crate) fn nobody_knew(&mut self) {
        self.unknown = (self.unknown + 1).min(2 * WATCHED);
        self.fresh_failed = false;
    }

    /// PostgreSQL knew a key.
    pub(crate) fn postgres_knew(&mut self) {
        self.unknown = 0;
        self.fresh_failed = false;
    }

    /// An attempt that expected fresh keys failed, with whatever: the same keys are not expected to be fresh again. A cluster may report
    /// a key that is known in words of its own, and its duplicate must not meet the same failure for ever.
    pub(crate) fn fresh_failed(&mut self) {
        self.fresh_failed = true;
    }

    /// The mirror knew a key, so it is worth asking; of the others nothing is said.
    pub(crate) fn mirror_knew(&mut self) {
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

    fn after(fresh_batches: u32) -> KeyPrediction {
        let mut prediction = KeyPrediction::default();
        for _ in 0..fresh_batches {
            prediction.nobody_knew();
        }
        prediction
    }

    #[test]
    fn keys_are_expected_to_be_fresh_until_postgresql_knows_one() {
        let mut prediction = after(3);
        assert_eq!(prediction.expect(&[]), ExpectedKeys::Fresh);
        prediction.postgres_knew();
        for _ in 0..WATCHED {
            assert_eq!(prediction.expect(&[]), ExpectedKeys::Known);
            prediction.nobody_knew();
        }
        assert_eq!(prediction.expect(&[]), ExpectedKeys::Fresh);
    }

    #[test]
    fn what_failed_as_fresh_is_expected_to_be_known_until_something_succeeds() {
        let mut prediction = after(3);
        prediction.fresh_failed();
        assert_eq!(prediction.expect(&[]), ExpectedKeys::Known);
        assert_eq!(prediction.expect(&[]), ExpectedKeys::Known, "again and again");
        prediction.nobody_knew();
        assert_eq!(prediction.expect(&[]), ExpectedKeys::Fresh, "it was not the keys");
        prediction.fresh_failed();
        prediction.postgres_knew();
        assert_eq!(prediction.expect(&[]), ExpectedKeys::Known, "it was the keys");
    }

    #[test]
    fn the_mirror_is_asked_until_nothing_was_known_for_a_while() {
        assert!(after(WATCHED - 1).needs_precheck(&[]));
        let mut prediction = after(WATCHED);
        assert!(!prediction.needs_precheck(&[]));
        prediction.mirror_knew();
        assert!(prediction.needs_precheck(&[]));
        assert_eq!(prediction.expect(&[]), ExpectedKeys::Fresh, "of the others the mirror says nothing");
        let mut prediction = after(1_000 * WATCHED);
        prediction.postgres_knew();
        assert!(prediction.needs_precheck(&[]));
    }
}
