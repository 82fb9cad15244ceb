//! What becomes of an answer that is too large to be kept.

/// What becomes of an answer that is longer than [`Settings::max_response`](super::Settings::max_response), or endless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLarge {
    /// A 500, and nothing is committed. The default of a transactional layer; a leased one has no such choice, since its effect has happened.
    Fail,
    /// It is stored without its body, then sent, whole. A retry gets status and kept headers, an empty body, and `Oncely-Body-Omitted: true`.
    /// Whoever lets go of the stream, or whose stream breaks off, gets no more of it by asking again.
    Omit,
}
