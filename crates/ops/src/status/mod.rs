//! The state of the system at one time: answers of the servers, and findings. Shared by all screens that show it.

mod failure;
mod findings;
mod servers;
mod snapshot;

pub use failure::ServerFailure;
pub use findings::{Severity, StatusFinding, collect_findings, exit_code};
pub use servers::Servers;
pub use snapshot::{DatabaseSnapshot, StatusSnapshot};
