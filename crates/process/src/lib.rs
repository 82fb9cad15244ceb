//! A program's start and life: logs, metrics, health, shutdown.

// Between the crates of Oncely, not of its interface: names and types say most.
#![allow(missing_docs)]

pub mod heartbeat;
pub mod metrics;
pub mod preflight;
pub mod process;
pub mod shutdown;
pub mod telemetry;
pub mod vitals;
pub mod watchdog;
pub mod witnesses;
