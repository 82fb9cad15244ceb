//! Maintenance of the tables: garbage collection by a cron schedule, and the audit table's partitions.

mod clock;
mod gc;
mod partitions;
mod quotas;
mod schedule;

pub use clock::refusal;
pub use gc::{CollectionOutcome, collect, plan};
pub use partitions::{PartitionReport, hexadecimal, keep_partitions};
pub(crate) use quotas::run_counts;
pub(crate) use schedule::{Signs, run};
