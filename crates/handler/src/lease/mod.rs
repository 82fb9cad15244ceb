//! Handlers with effects outside PostgreSQL: each message is a run under a lease ([`oncely_lease`]).

mod ending;
mod failed;
mod finish;
mod handler;
mod held;

pub use ending::{RunEndResult, RunFailure};
pub use finish::Finish;
pub use handler::ErasedLeasedHandler;
pub use handler::LeasedHandler;
pub use held::Lease;
