//! RabbitMQ: supervised connections, deliveries that are acknowledged once, publishing with confirmed arrival.

// Between the crates of Oncely, not of its interface: names and types say most.
#![allow(missing_docs)]

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

pub use applied::{AppliedTopology, ExistingObject, RefusedObject};
pub use budget::Budget;
pub use channel_life::ChannelLife;
pub use connection::{AmqpError, connect};
pub use copy::{Copy, header, put_header, strip_deaths, strip_headers, strip_own_headers, to_short_string};
pub use delivery::Delivery;
pub use delivery::convert_delivery;
pub use depth::{Depth, query_depth};
pub use frames::fit_properties;
pub use headers::MAX_VALUES as MAX_HEADER_VALUES;
pub use headers::fit_headers;
pub use management::{BindingFacts, Management, ManagementError, QueueFacts};
pub use probe::{PublishAcceptance, probe};
pub use publish_connection::{
    MAX_CONCURRENT_EXCHANGES, OutgoingMessage, PublishConnection, PublishLimits, PublishResult,
};
pub use publisher::{PublishError, Publisher};
pub use queue_reader::{QueueReader, QueuedMessage};
pub use stored::{restore_headers, restore_properties, store_headers, store_properties};
pub use subscription::Subscription;
pub use topology::{Topology, TopologyReport};
