//! From a batch of deliveries to their outcomes.

pub(super) mod candidate;
pub(super) mod lane;
mod precheck;
pub(super) mod prediction;
mod prepare;
