//! RabbitMQ: supervised connections, deliveries that are acknowledged once, publishing that is known to have arrived.

mod applied;
mod budget;
mod channel_life;
mod connection;
mod copy;
mod delivery;
mod depth;
mod frames;
mod headers;
mod management;
mod nodes;
mod probe;
mod publish_connection;
mod publisher;
mod queue_reader;
mod read_through;
mod stored;
mod subscription;
mod topology;
mod transport;
mod valve;

pub use applied::{Applied, Beside, Refused};
pub(crate) use budget::Budget;
pub(crate) use channel_life::ChannelLife;
pub use connection::{AmqpError, connect};
pub(crate) use copy::{Copy, header, put, short, without, without_deaths, without_ours};
pub(crate) use delivery::Delivery;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use delivery::read;
pub(crate) use depth::{Depth, depth};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use frames::properties as fit_properties;
pub(crate) use headers::MOST_VALUES as MOST_HEADER_VALUES;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use headers::fit;
pub(crate) use management::{BindingFacts, Management, ManagementError, QueueFacts};
pub(crate) use probe::{Taking, probe};
pub(crate) use publish_connection::{Outgoing, PublishConnection, PublishResult};
pub(crate) use publisher::{PublishError, Publisher};
pub(crate) use queue_reader::{QueueReader, QueuedMessage};
pub(crate) use stored::{restore_headers, restore_properties, store_headers, store_properties};
pub(crate) use subscription::Subscription;
pub use topology::{Topology, TopologyReport};
