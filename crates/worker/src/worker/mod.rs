//! The worker: from a delivery to an acknowledgement. `lane` walks each batch through the folders: `intake` → `batch` → `transaction` →
//! `settle`, and `isolation` beside them.

mod batch;
mod builder;
mod candidate;
mod counters;
mod dry_run;
mod error;
mod failure_log;
mod health;
mod heartbeat;
mod intake;
mod interrupt;
mod isolation;
mod journal;
mod keys;
mod lane;
mod leased;
mod nodes;
mod observation;
mod observe;
mod owners;
mod prediction;
mod progress;
mod register;
mod round;
mod router;
mod run;
mod settle;
mod shared;
mod start_lanes;
mod subscribe;
mod tasks;
mod transaction;
#[cfg(feature = "testing")]
mod trial;
mod undecided;

pub use builder::{Worker, WorkerBuilder};
pub use dry_run::{DryRun, DryRunError, DryRunReport, KnownKey, TriedBatch, TriedMessage};
pub use error::WorkerError;
pub use health::{ConsumerReport, FailureNotice};
pub use shared::ProcessContext;
pub use transaction::rehearsal::Effect;
#[cfg(feature = "testing")]
pub(crate) use trial::{TrialConsumer, TrialWorker, UndecidedReason};

pub use oncely_process::shutdown::StopOutcome;
