//! The worker: from a delivery to an acknowledgement. The folders are the walk: `intake` → `batch` → `transaction` → `settle`, and
//! `isolation` beside it.

mod abandoned;
mod batch;
mod counters;
mod error;
mod failure_log;
mod health;
mod intake;
mod isolation;
mod progress;
mod register;
mod run;
mod settle;
mod shared;
mod subscribe;
mod transaction;

pub use error::WorkerError;
pub(crate) use health::Report;
pub use run::{Worker, WorkerBuilder};

pub use crate::shutdown::Stopped;
