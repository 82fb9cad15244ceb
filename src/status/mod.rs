//! How everything stands at one time: what the servers say, and what a person should know of it. For every screen that shows it.

mod findings;
mod picture;

pub(crate) use findings::{Finding, Severity, code, judge};
pub(crate) use picture::{Database, Missing, Picture, QueueState, queue_states};
