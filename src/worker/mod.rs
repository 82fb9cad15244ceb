//! The worker: from a delivery to an acknowledgement.

mod call;
mod claim;
mod counters;
mod lane;
mod letters;
mod precheck;
mod prepare;
mod record;
mod run;
mod settle;
mod shared;
mod stop;
mod subscribe;
mod transaction;

pub use run::{Worker, WorkerBuilder, WorkerError};

pub use crate::shutdown::Stopped;
