//! Events, the mirror, and the collection of old rows.

// Between the crates of Oncely, not of its interface: names and types say most.
#![allow(missing_docs)]

pub mod maintenance;
pub mod relay;
