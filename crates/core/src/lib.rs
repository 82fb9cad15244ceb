//! Values and decisions: no I/O, no clock, no runtime.

pub mod backoff;
pub mod blame;
pub mod decide;
pub mod durations;
pub mod encryption;
pub mod event;
pub mod extract;
pub mod fault;
pub mod fingerprint;
pub mod identity;
pub mod json;
pub mod letter;
pub mod mask;
pub mod message;
pub mod outcome;
pub mod own_headers;
pub mod reason;
pub mod retry;
pub mod settlement;
pub mod shown;
pub mod signing;
pub mod trace_parent;
pub mod units;
mod words;
