//! Tests that only read the repository's files.

// Clippy's exception for tests covers functions marked #[test], not their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod architecture;
mod names;
mod prose;
mod sources;
