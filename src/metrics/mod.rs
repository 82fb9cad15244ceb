//! What can be measured: names, labels, and the handles by which processes count.
//!
//! Each series is made at the start, so that zero is told apart from absent. Labels are bounded: they come from the configuration or from
//! enums, never from a message. Without a recorder (the one behind `worker.listen`,
//! or the embedding program's) a handle does nothing.

mod catalogue;
mod consumer;
#[cfg(feature = "gateway")]
mod gateway;
mod process;
mod registry;
mod relay;

pub use catalogue::{CATALOGUE, Kind, Metric, OTHER};
pub(crate) use consumer::{ConsumerMetrics, Stage};
#[cfg(feature = "gateway")]
pub(crate) use gateway::{Called, GatewayMetrics};
pub(crate) use process::{MirrorMetrics, ProcessMetrics, Server};
pub(crate) use registry::Registry;
pub(crate) use relay::{DoctorMetrics, GcMetrics, RelayMetrics, RelayResult, Target};
