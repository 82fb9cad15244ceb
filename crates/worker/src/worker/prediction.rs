//! Predicts the next batch's keys from the last batches. A wrong prediction costs one more transaction.

use super::candidate::Candidate;

/// Expectation of the keys that a lane claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedKeys {
    /// None is known.
    Fresh,
    /// Some may be known.
    Known,
}

/// Maximum number of messages in a small batch. For small batches the number of round trips counts; dividing messages inside the server
/// costs a large batch more than sending keys three times (23.5 against 22.1 microseconds a message in batches of 500).
pub(crate) const MAX_SMALL_BATCH: usize = 64;

/// Batches after one with a known key in which a lane expects known keys.
const EXPECTED_BATCHES: u32 = 64;
/// Batches after one with a known key in which a lane queries the mirror for small batches, too.
const PRECHECKED_BATCHES: u32 = 2 * EXPECTED_BATCHES;

/// Results of a lane's last batches.
#[derive(Debug)]
pub(crate) struct KeyPrediction {
    /// Batches in a row without a known key.
    unknown: u32,
    /// The last transaction that expected fresh keys failed, and none has succeeded since: a key may have been known without the error
    /// showing it.
    fresh_failed: bool,
}

impl Default for KeyPrediction {
    /// Expects fresh keys, but queries the mirror: the messages at the start may be a storm of redeliveries.
    fn default() -> Self {
        Self { unknown: EXPECTED_BATCHES, fresh_failed: false }
    }
}

impl KeyPrediction {
    /// Returns the expectation of these keys.
    pub(crate) fn expect(&self, candidates: &[&Candidate]) -> ExpectedKeys {
        match self.unknown >= EXPECTED_BATCHES && !self.fresh_failed && !has_redelivered(candidates) {
            true => ExpectedKeys::Fresh,
            false => ExpectedKeys::Known,
        }
    }

    /// Returns whether querying the mirror is worth a round trip. It is not for a small batch with keys that are most likely fresh: if
    /// PostgreSQL finds a known key after all, the next batches are prechecked again.
    pub(crate) fn should_precheck(&self, candidates: &[&Candidate]) -> bool {
        candidates.len() > MAX_SMALL_BATCH || self.unknown < PRECHECKED_BATCHES || has_redelivered(candidates)
    }

    /// Records a batch with fresh keys only.
    pub(crate) fn record_fresh(&mut self) {
        self.unknown = (self.unknown + 1).min(PRECHECKED_BATCHES);
        self.fresh_failed = false;
    }

    /// Records a key known to PostgreSQL.
    pub(crate) fn record_known(&mut self) {
        self.unknown = 0;
        self.fresh_failed = false;
    }

    /// Records that a transaction that expected fresh keys failed, for any reason: the same keys are not expected to be fresh again. A
    /// cluster may report a known key by another error, and its duplicate must not meet the same failure for ever.
    pub(crate) fn record_fresh_failed(&mut self) {
        self.fresh_failed = true;
    }

    /// Records a key known to the mirror: the mirror is worth a query. Nothing follows for the other keys.
    pub(crate) fn record_mirror_hit(&mut self) {
        self.unknown = self.unknown.min(EXPECTED_BATCHES);
    }
}

/// Returns whether any of the messages was redelivered: its key is the most likely to be known.
fn has_redelivered(candidates: &[&Candidate]) -> bool {
    candidates.iter().any(|one| one.delivery.message.redelivered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(fresh_batches: u32) -> KeyPrediction {
        let mut prediction = KeyPrediction::default();
        for _ in 0..fresh_batches {
            prediction.record_fresh();
        }
        prediction
    }

    #[test]
    fn keys_are_expected_to_be_fresh_until_postgresql_knows_one() {
        let mut prediction = after(3);
        assert_eq!(prediction.expect(&[]), ExpectedKeys::Fresh);
        prediction.record_known();
        for _ in 0..EXPECTED_BATCHES {
            assert_eq!(prediction.expect(&[]), ExpectedKeys::Known);
            prediction.record_fresh();
        }
        assert_eq!(prediction.expect(&[]), ExpectedKeys::Fresh);
    }

    #[test]
    fn what_failed_as_fresh_is_expected_to_be_known_until_something_succeeds() {
        let mut prediction = after(3);
        prediction.record_fresh_failed();
        assert_eq!(prediction.expect(&[]), ExpectedKeys::Known);
        assert_eq!(prediction.expect(&[]), ExpectedKeys::Known, "again and again");
        prediction.record_fresh();
        assert_eq!(prediction.expect(&[]), ExpectedKeys::Fresh, "it was not the keys");
        prediction.record_fresh_failed();
        prediction.record_known();
        assert_eq!(prediction.expect(&[]), ExpectedKeys::Known, "it was the keys");
    }

    #[test]
    fn the_mirror_is_asked_until_nothing_was_known_for_a_while() {
        assert!(after(EXPECTED_BATCHES - 1).should_precheck(&[]));
        let mut prediction = after(EXPECTED_BATCHES);
        assert!(!prediction.should_precheck(&[]));
        prediction.record_mirror_hit();
        assert!(prediction.should_precheck(&[]));
        assert_eq!(prediction.expect(&[]), ExpectedKeys::Fresh, "of the others the mirror says nothing");
        let mut prediction = after(1_000 * EXPECTED_BATCHES);
        prediction.record_known();
        assert!(prediction.should_precheck(&[]));
    }
}
