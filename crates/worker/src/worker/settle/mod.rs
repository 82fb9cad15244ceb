//! Settles deliveries with the broker, after their outcomes are committed.

mod copies;
mod decided;
pub(super) mod settle_copies;
pub(super) mod unsettled;

pub(super) use decided::settle;
