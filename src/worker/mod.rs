//! The worker: from a delivery to an acknowledgement. `lane` walks each batch through the folders: `intake` → `batch` → `transaction` →
//! `settle`, and `isolation` beside them.

mod abandoned;
mod batch;
mod builder;
mod candidate;
mod counters;
mod dry_run;
mod error;
mod failure_log;
mod gone;
mod health;
mod intake;
mod interrupt;
mod isolation;
mod journal;
mod keys;
mod lane;
mod leased;
mod observe;
mod prediction;
mod progress;
mod register;
mod run;
mod settle;
mod shadow;
mod shared;
mod subscribe;
mod tasks;
mod transaction;
#[cfg(feature = "testing")]
mod trial;

pub use builder::{Worker, WorkerBuilder};
pub(crate) use dry_run::{BrokenOff, DryRun, KnownKey, Rehearsed, Tried, TriedBatch};
pub use error::WorkerError;
pub(crate) use health::{Report, Trouble};
pub(crate) use shared::Common;
pub(crate) use transaction::rehearsal::Effect;
#[cfg(feature = "testing")]
pub(crate) use trial::{Trial, Trials, Undecided};

pub use crate::shutdown::Stopped;
