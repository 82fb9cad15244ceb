//! What a message was completed with, as a request sees it.

use serde_json::Value;

/// What a key that took effect as a message was completed with.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MessageResult {
    /// Its response; none where it has none, and where a worker has encrypted it.
    pub response: Option<Value>,
    /// The handler refused it: the answer is no.
    pub is_refused: bool,
}
