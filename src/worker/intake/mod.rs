//! Where the lanes of a consumer take their batches from.

pub(super) mod aside;
pub(super) mod queue;
pub(super) mod split;
