//! What an operator does to dead letters: a plan, a requeue or a discard by it, and the sweep of their queues. For every program that
//! lets people do it; what they are asked, and how they are told, is its own.

mod copy;
mod operation;
mod outcome;
mod plan;
mod requeue;
mod sweep;
mod swept;

pub(crate) use operation::{Item, Operation, Order, Phase, Progress};
pub(crate) use outcome::LetterOutcome;
pub(crate) use plan::{Change, Plan};
pub(crate) use requeue::{Overrides, requeue_refusal};
pub(crate) use sweep::{LONG, Pass, sweep, sweep_tenant};
pub(crate) use swept::Swept;
