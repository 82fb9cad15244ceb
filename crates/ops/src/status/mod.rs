//! The state of the system at one time: answers of the servers, and findings. Shared by all screens that show it.

mod findings;
mod picture;

pub use findings::{Severity, StatusFinding, code, judge};
pub use picture::{DatabaseSnapshot, QueueState, ServerFailure, StatusSnapshot, queue_states};
