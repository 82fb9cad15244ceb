//! End of a batch without a decision.

/// The batch was given up without a decision: its messages are not settled, so they come again.
#[derive(Debug)]
pub(crate) struct AbandonedBatch;
