//! Leases: a key that is held for a time, for effects outside PostgreSQL that no transaction covers. The state is the key's own row, the
//! rules are those of `oncely.claim_lease` and its neighbours in SQL; here is what runs under one.

mod ending;
mod failed;
mod finish;
mod group;
mod handler;
mod held;
mod lines;
mod sessions;
mod step;
mod trail;

pub(crate) use ending::{Ended, Failure};
pub use finish::Finish;
pub(crate) use group::{Group, Grouping};
pub(crate) use handler::ErasedLeasedHandler;
pub use handler::LeasedHandler;
pub(crate) use held::Claimed;
pub use held::Lease;
pub(crate) use lines::Lines;
pub(crate) use sessions::{LeaseTime, Said, Sessions, Statement, statement};
pub use step::{Call, Repeat, Step, StepError};
pub(crate) use trail::Trail;
