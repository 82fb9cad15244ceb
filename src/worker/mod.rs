//! The worker: from a delivery to an acknowledgement.

mod attempt;
mod call;
mod claim;
mod counters;
mod deadline;
mod forecast;
mod fresh;
mod intake;
mod isolate;
mod lane;
mod letters;
mod marks;
mod portion;
mod precheck;
mod prepare;
mod record;
mod register;
mod replies;
mod run;
mod settle;
mod shared;
mod stop;
mod subscribe;
mod transaction;
mod unconfirmed;

pub use run::{Worker, WorkerBuilder, WorkerError};

pub use crate::shutdown::Stopped;
