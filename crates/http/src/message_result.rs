//! Result of a message, as returned to a request with its key.

use serde_json::Value;

/// Result of a key that took effect as a message.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MessageResult {
    /// The handler's response; `None` if it has none, or if a worker has encrypted it.
    pub response: Option<Value>,
    /// Whether the handler refused it: the answer is no.
    pub is_refused: bool,
}
