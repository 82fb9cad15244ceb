//! An operator's actions and overviews, without a terminal or HTML.

// Between the crates of Oncely, not of its interface: names and types say most.
#![allow(missing_docs)]

pub mod erasure;
pub mod exit;
pub mod letters;
pub mod overview;
pub mod status;
pub mod story;
pub mod trail;
