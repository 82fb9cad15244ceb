//! Commits batches, in one statement or step by step, and attributes failures.

pub(super) mod batch_run;
mod call;
mod claim;
mod deadline;
pub(super) mod decider;
pub(super) mod letters;
mod one_statement;
pub(super) mod record;
pub(super) mod rehearsal;
pub(super) mod replies;
pub(super) mod runner;
mod setback;
mod steps;
mod unconfirmed;
mod verdict;
pub(super) mod without_handler;
