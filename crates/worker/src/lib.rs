//! Consumers: batches, retries, dead letters.

// Between the crates of Oncely, not of its interface: names and types say most.
#![allow(missing_docs)]

#[cfg(feature = "testing")]
pub mod testing;
pub mod worker;
