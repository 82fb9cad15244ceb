//! Messages that take effect once.

pub mod amqp;
pub(crate) mod backoff;
pub mod cli;
pub mod config;
pub mod decide;
pub mod exit;
pub mod extract;
pub mod fault;
pub mod fingerprint;
pub mod handler;
pub mod identity;
pub(crate) mod maintenance;
pub mod message;
pub mod mirror;
pub mod outcome;
pub mod pg;
pub(crate) mod preflight;
pub mod reason;
pub mod relay;
pub mod retry;
pub(crate) mod seal;
pub mod shutdown;
pub mod stack;
pub mod telemetry;
pub mod worker;
