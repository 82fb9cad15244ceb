//! Settles deliveries with the broker, after their outcomes are committed.

mod acknowledge;
mod copies;
mod decided;
pub(super) mod settle_copies;
mod settled;
pub(super) mod unsettled;

pub(super) use decided::settle;
