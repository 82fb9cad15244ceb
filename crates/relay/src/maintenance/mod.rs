//! Maintenance of the tables: garbage collection by a cron schedule, and the audit table's partitions.

mod clock;
mod gc;
mod partitions;
mod quotas;
mod schedule;

pub use clock::describe_clock_refusal;
pub use gc::{CollectionOutcome, collect, plan_collection};
pub use partitions::{PartitionReport, format_hash, maintain_partitions};
pub(crate) use quotas::run_counts;
pub(crate) use schedule::{MaintenanceReporter, run};
