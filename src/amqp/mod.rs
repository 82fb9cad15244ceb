//! RabbitMQ: supervised connections, deliveries that are acknowledged once, publishing that is known to have arrived.

mod connection;
mod delivery;
mod headers;
mod publisher;
mod settle;
mod subscription;
mod topology;

pub use connection::{AmqpError, connect};
pub(crate) use delivery::Delivery;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use delivery::read;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use headers::fit;
pub(crate) use publisher::{Copy, Publisher};
pub(crate) use subscription::{Epoch, Subscription};
pub(crate) use topology::RUNG_HEADER;
pub use topology::{Applied, Topology, TopologyReport};
