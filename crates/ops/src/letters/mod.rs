//! Changes of dead letters by an operator: a plan, a requeue or a discard by it, and the sweep of their queues. Shared by all programs with
//! such a function; prompts and messages are their own.

mod copy;
mod operation;
mod outcome;
mod plan;
mod requeue;
mod sweep;
mod swept;

pub use operation::{Operation, OperationItem, OperationPhase, OperationProgress, Order};
pub use outcome::LetterOutcome;
pub use plan::{Change, LetterChangePlan};
pub use requeue::{Overrides, requeue_refusal};
pub use sweep::{MAX_AUTOMATIC_MESSAGES, SweepResult, sweep, sweep_tenant};
pub use swept::SweepReport;
