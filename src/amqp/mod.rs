//! RabbitMQ: supervised connections, deliveries that are acknowledged once, publishing that is known to have arrived.

mod connection;
mod delivery;
mod headers;
mod planted;
mod publisher;
mod subscription;
mod topology;

pub use connection::{AmqpError, connect};
pub(crate) use delivery::Delivery;
pub(crate) use publisher::{Copy, Publisher};
pub(crate) use subscription::{Epoch, Subscription};
pub(crate) use topology::RUNG_HEADER;
pub use topology::{Applied, Topology, TopologyReport};
