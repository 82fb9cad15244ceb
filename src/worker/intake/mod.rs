//! Where the lanes of a consumer take their batches from.

pub(super) mod arrivals;
pub(super) mod aside;
pub(super) mod gate;
pub(super) mod split;
mod turns;
