//! Upkeep of the tables: garbage collection by a cron schedule, and the audit table's partitions.

mod gc;
mod partitions;
mod schedule;

pub(crate) use gc::{plan, sweep};
pub(crate) use partitions::keep_partitions;
pub(crate) use schedule::run;
