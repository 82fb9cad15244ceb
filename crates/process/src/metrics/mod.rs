//! Metrics: names, labels, and the handles by which processes count.
//!
//! Each series is created at the start, so that zero differs from absent. Labels are bounded: their values come from the configuration or
//! from enums, never from a message. Without a recorder (the one behind `worker.listen`, or the embedding program's) a handle does nothing.

mod catalogue;
mod consumer;
mod gateway;
mod process;
mod registry;
mod relay;

pub use catalogue::{CATALOGUE, Kind, Metric, OTHER};
pub use consumer::{ConsumerMetrics, Stage};
pub use gateway::{GatewayMetrics, ServiceCallOutcome};
pub use process::{MirrorMetrics, ProcessMetrics, Server};
pub use registry::Registry;
pub use relay::{DoctorMetrics, GcMetrics, RelayMetrics, RelayResult, Target};
