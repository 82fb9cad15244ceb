//! Treatment of answers that are too large to keep.

/// Treatment of an answer that exceeds [`IdempotencyLayerBuilder::max_response`](super::IdempotencyLayerBuilder::max_response) or never ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLarge {
    /// Answers 500 and commits nothing. Default of a transactional layer; not available under leases, as the effect has already happened.
    Fail,
    /// Stores the answer without its body, then sends it in full. A retry gets status and kept headers, an empty body, and
    /// `Oncely-Body-Omitted: true`; a client with a broken stream can't get the rest by a retry.
    Omit,
}
