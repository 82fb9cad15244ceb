//! Batches for the lanes of a consumer.

pub(super) mod arrivals;
pub(super) mod aside;
pub(super) mod gate;
pub(super) mod pace;
mod turns;
