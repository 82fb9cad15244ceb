//! The worker: from a delivery to an acknowledgement.

mod aside;
mod attempt;
mod call;
mod claim;
mod counters;
mod deadline;
mod failure_log;
mod forecast;
mod fresh;
mod health;
mod intake;
mod isolate;
mod lane;
mod letters;
mod marks;
mod permit;
mod portion;
mod precheck;
mod prepare;
mod progress;
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
mod unsettled;

pub(crate) use health::Report;
pub use run::{Worker, WorkerBuilder, WorkerError};

pub use crate::shutdown::Stopped;
