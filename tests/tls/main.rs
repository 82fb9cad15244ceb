//! TLS on real servers that demand certificates.

// Clippy's exception for tests covers functions marked #[test], not their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod endpoint;
mod files;
mod gateway;
mod matrix;
mod messages;
mod recorder;
mod sentinel;
mod servers;
#[allow(dead_code, unused_imports)]
#[path = "../it/support/mod.rs"]
mod support;
