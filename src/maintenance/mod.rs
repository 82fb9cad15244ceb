//! Maintenance of the tables: garbage collection by a cron schedule, and the audit table's partitions.

mod clock;
mod gc;
mod partitions;
mod quotas;
mod schedule;

pub(crate) use clock::refusal;
pub(crate) use gc::{Ended, collect, plan};
pub(crate) use partitions::{Kept, hexadecimal, keep_partitions};
pub(crate) use quotas::run_counts;
pub(crate) use schedule::{Signs, run};
