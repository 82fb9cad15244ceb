//! Models: every order of events of a small world, over the pure functions that decide in production.
//!
//! [`claim`] is a message's way from the broker through the transaction to its acknowledgement, with batches, crashes,
//! channels that end and replies that get lost. [`mirror`] is the mirror queue's way to Redis, the garbage collection, and
//! failovers that lose commits. [`blame`] is who is charged for a failure
//! and who waits for whom. [`order`] is the way of ordered events through two relays. [`lease`] is a key that is held for a time, and the calls
//! outside that are made meanwhile. Policies that are known to be wrong must fail: else a green run means nothing.

// Clippy's exception for tests covers functions marked #[test], not their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, unreachable_pub)]

mod blame;
mod claim;
mod explore;
mod lease;
mod mirror;
mod order;
