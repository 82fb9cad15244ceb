//! Consumers with a handler that runs under leases, instead of lanes: each message a run of its own, many at the same time, no transaction
//! while the handler works.

mod consume;
mod ended;
mod record;
mod run;
mod runner;
#[cfg(feature = "testing")]
mod trial;
mod waiting;

pub(super) use self::consume::{consume, leased_handler};
#[cfg(feature = "testing")]
pub(super) use self::trial::LeasedTrial;
