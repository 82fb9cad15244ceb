//! The worker: from a delivery to an acknowledgement.

mod counters;
mod lane;
mod precheck;
mod prepare;
mod run;
mod settle;
mod shared;
mod subscribe;
mod transaction;

pub use run::{Worker, WorkerBuilder, WorkerError};

pub use crate::shutdown::Stopped;
