//! Maintenance of the tables: garbage collection by a cron schedule, and the audit table's partitions.

mod clock;
mod gc;
mod partitions;
mod schedule;

pub(crate) use clock::refusal;
pub(crate) use gc::{Ended, collect, plan};
pub(crate) use partitions::{Kept, hexadecimal, keep_partitions};
pub(crate) use schedule::{Signs, run};
