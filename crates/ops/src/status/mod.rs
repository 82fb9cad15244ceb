//! The state of the system at one time: answers of the servers, and findings. Shared by all screens that show it.

mod failure;
mod findings;
mod servers;
mod snapshot;

pub use failure::ServerFailure;
pub use findings::{Severity, StatusFinding, exit_code, judge};
pub use servers::Servers;
pub use snapshot::{DatabaseSnapshot, StatusSnapshot};
